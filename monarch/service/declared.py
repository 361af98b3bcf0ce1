"""The declarations of an endpoint, by decorators under `@endpoint`: how it is batched, that it may run twice, how its
requests begin."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from monarch.service.numbers import check_number

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE = "_monarch_service"


@dataclass(frozen=True, slots=True)
class Declared:
    """The declarations of one endpoint."""

    max_batch: int = 0  # 0: not batched
    max_wait: float = 0.0
    key: Callable[..., Hashable] | None = None
    retries: int = 0
    prefix: Callable[..., Sequence[Any]] | None = None
    block: int = 0


NOTHING = Declared()


def declared(method: Any) -> Declared:
    """Returns the declarations of an endpoint as it stands in its class."""
    found: Declared = getattr(method, "__dict__", {}).get(_ATTRIBUTE, NOTHING)
    return found


def _declare(decorator: str, function: Any, **changes: Any) -> Any:
    if not hasattr(function, "__code__"):
        raise TypeError(
            f"@{decorator} decorates the method itself, got {function!r}: write @endpoint above it, @{decorator} below"
        )
    setattr(function, _ATTRIBUTE, replace(declared(function), **changes))
    return function


def batched(
    method: None = None, /, *, max_batch: int = 8, max_wait: float = 0.01, key: Callable[..., Hashable] | None = None
) -> Callable[[F], F]:
    """Declares, under `@endpoint`, that a service gives this endpoint many requests at once.

        @endpoint
        @batched(max_batch=8)
        def generate(self, prompts: list[str]) -> list[str]: ...

    Each parameter is a list, with one item of each request, and the endpoint returns a list of the same length; an exception
    in it is raised by that request alone. `service.generate.route(prompt)` passes and gets one item. `key`, a function of the
    arguments of a request, called where the request is made: only requests with equal keys go together.

    The rule: a replica that does nothing takes what waits for it at once, so a request that is alone never waits. A replica
    that is at work and may do more at a time (`concurrency`) waits until `max_batch` requests are there, or the first of
    them has waited for `max_wait` seconds. Since 0.2.0.
    """
    if method is not None:
        raise TypeError("write @batched() with its brackets, such as @batched(max_batch=8)")
    check_number("batched: max_batch", max_batch, 1, whole=True)
    check_number("batched: max_wait", max_wait)
    return lambda function: _declare("batched", function, max_batch=max_batch, max_wait=max_wait, key=key)


def retried(retries: int) -> Callable[[F], F]:
    """Declares, under `@endpoint`, that a request may run more than once: when its replica dies, a service gives it to
    another one, `retries` times at most. Requests that had not begun are moved in any case. Since 0.2.0.
    """
    if callable(retries):
        raise TypeError("write how often it may run again, such as @retried(2)")
    check_number("retried: retries", retries, 1, whole=True)
    return lambda function: _declare("retried", function, retries=retries)


def prefixed(prefix: Callable[..., Sequence[Any]], *, block: int = 16) -> Callable[[F], F]:
    """Declares, under `@endpoint`, the beginning of a request, for the routing policy `by_prefix`: `prefix`, called with the
    arguments of a request where it is made, returns a sequence (text, tokens), which is compared in blocks of `block` items.
    Since 0.2.0.
    """
    if not callable(prefix):
        raise TypeError(f"prefixed takes a function of a request's arguments, as lambda prompt: prompt, got {prefix!r}")
    check_number("prefixed: block", block, 1, whole=True)
    return lambda function: _declare("prefixed", function, prefix=prefix, block=block)


_MOST_BLOCKS = 256  # of one request: what is longer is compared so far


def blocks_of(prefix: Sequence[Any], block: int) -> tuple[int, ...]:
    """Returns a number for each whole block of a sequence, which stands for everything up to its end. The same in every
    process."""
    found, running = [], hashlib.blake2b(digest_size=8)
    for start in range(0, min(len(prefix) - block + 1, _MOST_BLOCKS * block), block):
        piece = prefix[start : start + block]
        running.update(piece if isinstance(piece, bytes) else repr(piece).encode())
        found.append(int.from_bytes(running.copy().digest()))
    return tuple(found)
