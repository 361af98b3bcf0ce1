"""Collectives that the process groups of torch.distributed in this process have begun: the question "collectives".

Nothing is noted for it while the program runs: torch numbers the collectives of each group and records the last ones (its
flight recorder: gloo and others since torch 2.9, NCCL for long), and both are read when somebody asks. Where a torch
has no recorder, numbers are all there is; gloo's then count sends and receives as well.

Answered on a thread of its own: the recorder makes a text of up to 2,000 entries.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from monarch._text import NAME_LIMIT, sendable

_GROUPS = 1000  # that are told of
_RECORDERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")


class GroupState(msgspec.Struct, frozen=True):
    """One process group, as one of its ranks sees it.

    `world`: what tells it from groups of the same name elsewhere, and from those before it: where the store is at which its
    ranks met; `name` and `label` are torch's, for machines and people.
    `ranks`: all of it, in order, by their numbers in the default group; `rank`: this one. `begun`: how many collectives were
    begun here. Of the last one `operation`, `shape` (of its first input) and whether it is `running` (None: not known).
    """

    world: str
    name: str
    label: str
    ranks: list[int]
    rank: int
    begun: int
    operation: str = ""
    shape: list[int] = []
    running: bool | None = None


class RecordedCollective(msgspec.Struct, frozen=True):
    """The last collective of a group that torch has recorded."""

    number: int
    operation: str
    shape: list[int]
    running: bool


def answer(proc: Any, argument: bytes) -> bytes:
    return msgspec.msgpack.encode(list(groups()))


decode_groups = msgspec.msgpack.Decoder(list[GroupState]).decode


def groups() -> Iterator[GroupState]:
    """Yields the groups of this process; nothing where torch.distributed is not in use."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    if world is None:
        return
    recorded = last_recorded(*_recordings())
    own = int(os.environ.get("RANK", "0") or 0)
    for group in list(world.pg_map)[:_GROUPS]:
        places = dict(world.pg_group_ranks.get(group, {}))
        name = str(getattr(group, "group_name", ""))
        last = recorded.get(name)
        begun = _begun(group)
        yield GroupState(
            store_of((world.pg_map.get(group) or (None, None))[1]),
            sendable(name, NAME_LIMIT),
            sendable(str(getattr(group, "group_desc", "")) or name, NAME_LIMIT),
            sorted(places, key=lambda rank: places[rank]),
            next((rank for rank, place in places.items() if place == group.rank()), own),
            begun if last is None else last.number,
            "" if last is None else last.operation,
            [] if last is None else last.shape,
            None if last is None else last.running,
        )


def store_of(store: Any) -> str:
    """Returns where the store of a group is. The environment may name that of a group to come."""
    while getattr(store, "port", None) is None and getattr(store, "underlying_store", None) is not None:
        store = store.underlying_store
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    if port is None:  # a file, or a store of the program's own
        host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    return f"{host}:{port}"


def _begun(group: Any) -> int:
    """Returns how many collectives torch has counted; 0 when it counts none."""
    try:
        if type(group).__module__.startswith("monarch."):  # made when first used: to ask it must not make it
            return int(group.begun())
        return int(group._get_sequence_number_for_group())
    except (RuntimeError, AttributeError):  # a backend that has no numbers
        return 0


def _recordings() -> Iterator[bytes]:
    """Returns what torch's recorders have; each is there or not, by version and build."""
    bindings = sys.modules.get("torch._C._distributed_c10d")
    for name in _RECORDERS:
        dump = getattr(bindings, name, None)
        if dump is not None:
            try:
                yield dump(True, False)
            except (RuntimeError, TypeError):  # a build without it, or another signature
                continue


def last_recorded(*recordings: bytes) -> dict[str, RecordedCollective]:
    """Returns, for each group by its name, the collective that was begun last. Pure; what is not understood is passed
    over."""
    found: dict[str, RecordedCollective] = {}
    for text in recordings:
        try:
            entries = list(json.loads(text)["entries"])
        except (ValueError, KeyError, TypeError):
            continue
        for entry in entries:
            try:
                if entry.get("is_p2p"):
                    continue
                name, number = str(entry["process_group"][0]), int(entry["collective_seq_id"])
                if name in found and found[name].number > number:
                    continue
                sizes = entry.get("input_sizes") or [[]]
                operation = str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"])
                ended = entry.get("retired", entry.get("state") == "completed") or entry.get("state") == "completed"
                found[name] = RecordedCollective(
                    number, sendable(operation, NAME_LIMIT), [int(n) for n in sizes[0]], not ended
                )
            except (KeyError, TypeError, ValueError, IndexError, AttributeError):
                continue
    return found
