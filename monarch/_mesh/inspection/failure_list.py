"""What has failed of the meshes that a process owns, and was not restarted: the question "failures"."""

from __future__ import annotations

from typing import Any

import msgspec

from monarch._text import sendable

_MOST = 100
_TEXT = 2000  # characters of a report


class FailureNote(msgspec.Struct, frozen=True):
    """Ranks of a mesh that have ended, and the report of it."""

    mesh: str
    ranks: list[int]
    report: str


def answer(proc: Any, argument: bytes) -> bytes:
    owned = proc.mesh.owned
    with owned.lock:
        failures = owned.ledger.failures()
    notes = [
        FailureNote(failure.mesh_name, sorted(ranks), sendable(failure.report, _TEXT))
        for failure, ranks in failures[: -_MOST - 1 : -1]  # the newest meshes first
    ]
    return msgspec.msgpack.encode(notes)


decode_failures = msgspec.msgpack.Decoder(list[FailureNote]).decode
