"""Errors for a program that takes a Future for its result: it forgot `.get()`, or `await`.

Only the operators and names are here that results have and a Future has not. There is no `__getattr__`: it would make every
attribute of a Future slower to read, and each call reads several.
"""

from __future__ import annotations

from typing import Any, TypeVar

from monarch._shape.refusals import arithmetic, refuse

F = TypeVar("F")

# Of a ValueMesh, of an actor mesh, of arrays and tensors, of containers and texts.
_OF_RESULTS = (
    "values", "items", "item", "slice", "split", "flatten", "rename", "size", "sizes", "extent", "to_table",
    "call", "call_one", "choose", "stream", "broadcast", "shape", "dtype", "device", "numpy", "tolist", "cpu",
    "cuda", "detach", "backward", "mean", "sum", "keys", "append", "copy", "count", "index", "strip", "lower",
    "upper", "encode", "decode",
)  # fmt: skip

# Of the Futures of concurrent.futures and asyncio.
_OF_OTHER_FUTURES = {
    "done": "get(timeout=0) raises TimeoutError while there is no result",
    "running": "the operation began when the Future was made",
    "cancel": "what runs in an actor goes on; limit a call with mesh.endpoint.with_timeout(seconds)",
    "cancelled": "what runs in an actor goes on; limit a call with mesh.endpoint.with_timeout(seconds)",
    "add_done_callback": "await it, or take as_asyncio(), which has callbacks",
    "set_result": "a Future is fulfilled by the runtime",
    "set_exception": "a Future is fulfilled by the runtime",
}  # fmt: skip


def not_the_result(future: Any, mistake: str) -> str:
    """The text for `mistake`, as Python itself would call it."""
    of = future._of()
    return (
        f"{mistake}: it is a Future{f', of {of}' if of else ''}, and not yet its result, which comes with .get(), or with "
        f"await in async code"
    )


def teach(cls: type[F]) -> type[F]:
    """Class decorator: gives Future the operators and names above, each of which raises."""
    members: dict[str, Any] = {name: _Missing(name, None) for name in _OF_RESULTS}
    members |= {name: _Missing(name, instead) for name, instead in _OF_OTHER_FUTURES.items()}
    members["__iter__"] = refuse(lambda self: "'Future' object is not iterable", not_the_result)
    members["__getitem__"] = refuse(lambda self, index: "'Future' object is not subscriptable", not_the_result)
    members |= arithmetic(not_the_result)
    members |= {"__format__": _format, "__dir__": _dir}
    for name, member in members.items():
        setattr(cls, name, member)
    return cls


class _Missing:
    """An attribute that is not there; AttributeError, so that `hasattr` says no."""

    def __init__(self, name: str, instead: str | None) -> None:
        self._name = name
        self._instead = instead

    def __get__(self, future: Any, owner: Any = None) -> Any:
        mistake = f"'Future' object has no attribute {self._name!r}"
        if future is None:
            raise AttributeError(f"type {mistake}")
        raise AttributeError(f"{mistake}: {self._instead}" if self._instead else not_the_result(future, mistake))


def _format(self: Any, spec: str) -> str:
    if spec:
        raise TypeError(not_the_result(self, f"the format {spec!r} does not fit a 'Future'"))
    return str(self)


def _dir(self: Any) -> list[str]:
    """Without the names that are here only to be refused."""
    return [name for name in object.__dir__(self) if name not in _OF_RESULTS and name not in _OF_OTHER_FUTURES]
