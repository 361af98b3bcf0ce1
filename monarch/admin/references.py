"""References: the names of the nodes of the tree, as they stand in answers and, percent-encoded whole, in paths. Pure.

    root
    host:agent.agent@<address>
    <proc>@<address>
    <actor>.<proc>@<address>

Names carry `<uid>` where they were generated. Programs take them as they come; only these four forms are refused early.
"""

from __future__ import annotations

import functools
import re
from urllib.parse import quote, unquote_to_bytes

ROOT = "root"
HOST = "host:"
_SHOWN = 200  # characters of a wrong reference that are said

_BROKEN = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class BadReference(ValueError):
    """It is no reference; `empty` or not decodable: the request is wrong, not the node."""

    def __init__(self, text: str, bad_request: bool = False) -> None:
        super().__init__(text)
        self.bad_request = bad_request


def host_reference(address: str) -> str:
    """Returns the reference of the host at that address."""
    return f"{HOST}agent.agent@{address}"


def proc_reference(proc: str, address: str) -> str:
    return f"{proc}@{address}"


def proc_of(actor: str) -> str:
    """The reference of the process in which that actor lives: what follows its own name."""
    identity, at, address = actor.rpartition("@")
    found = re.match(r"(?:.*?<[0-9A-Za-z]+>|[^.]*)\.", identity, re.DOTALL)
    return actor if found is None else identity[found.end() :] + at + address


def encoded(reference: str) -> str:
    """Returns it as it stands in a path."""
    return quote(reference, safe="")


def decoded(raw: bytes) -> str:
    """Reads what stands in a path. BadReference for what is empty or no percent encoding of UTF-8."""
    if not raw:
        raise BadReference("empty reference: the root is 'root'", bad_request=True)
    if _BROKEN.search(raw):
        raise BadReference(f"bad percent encoding in {_shown(raw.decode('latin-1'))}", bad_request=True)
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise BadReference(
            f"bad percent encoding in {_shown(raw.decode('latin-1'))}: not UTF-8", bad_request=True
        ) from None


def check(reference: str) -> str:
    """The reference, if it has the form of one. BadReference otherwise."""
    if not reference:
        raise BadReference("empty reference: the root is 'root'", bad_request=True)
    if reference == ROOT:
        return reference
    identity, at, address = reference.rpartition("@")
    if not at:
        raise BadReference(f"invalid reference {_shown(reference)}: missing '@' separator between id and location")
    if not identity or identity == HOST:
        raise BadReference(f"invalid reference {_shown(reference)}: no id before '@'")
    if not address:
        raise BadReference(f"invalid reference {_shown(reference)}: no location behind '@'")
    return reference


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


_PARTS = re.compile(r"(\d+)")


@functools.lru_cache(maxsize=10_000)
def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A key to sort by, in which w-2 comes before w-10."""
    return tuple(
        (0, int(part), "") if part.isdecimal() and part.isascii() else (1, 0, part)
        for part in _PARTS.split(text)
        if part
    )
