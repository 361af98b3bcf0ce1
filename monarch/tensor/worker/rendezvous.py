"""The rendezvous of processes that make a group: a table of small values in the controller's process, asked by
messages.

torch.distributed meets at a `Store`. Its own ones open a port that anybody may write to; this one goes the way of
every other message, so that who may speak is checked as for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from monarch._linux.locks import Lock
from monarch.actor import Actor, Port, endpoint

# Values that an engine's rendezvous keeps; beyond that `put` refuses. Groups that were dropped are forgotten.
LIMIT = 1 << 16
GROUPS = 1 << 12  # lost groups that it remembers
AT_ONCE = 10.0  # seconds for an answer that waits for nobody


class Rendezvous(Actor):
    """The table of one engine. A question for a value that is not there yet is answered when it comes."""

    _is_system_actor = True

    def __init__(self) -> None:
        self._values: dict[str, dict[str, bytes]] = {}  # folder -> name -> value
        self._waiting: list[tuple[str, str, Port[Any]]] = []
        self._lost: dict[str, str] = {}  # group -> why; the latest
        self._left: dict[str, int] = {}  # dropped groups, while streams leave them
        self._count = 0
        self._ended = ""

    @endpoint(explicit_response_port=True, instrument=False)
    def put(self, port: Port[None], folder: str, name: str, value: bytes) -> None:
        """Sets a value, and answers those who wait for it. RuntimeError beyond LIMIT values."""
        known = self._values.setdefault(folder, {})
        if name not in known:
            if self._count >= LIMIT:
                port.exception(
                    RuntimeError(
                        f"{LIMIT} entries of process groups are stored: drop() those that are not needed any more"
                    )
                )
                return
            self._count += 1
        known[name] = value
        port.send(None)
        self._tell(folder, name)

    @endpoint(explicit_response_port=True, instrument=False)
    def look(self, port: Port[dict[str, bytes]], folder: str, name: str) -> None:
        """All values of `folder`, as soon as `name` is among them. RuntimeError once the engine has ended."""
        known = self._values.get(folder, {})
        if why := self._ended or self._lost.get(_group(folder)):
            port.exception(RuntimeError(why))
        elif name in known:
            port.send(dict(known))
        elif len(self._waiting) >= LIMIT:
            port.exception(RuntimeError(f"{LIMIT} processes wait for entries of process groups: no more can"))
        else:
            self._waiting.append((folder, name, port))

    @endpoint(explicit_response_port=True, instrument=False)
    def add(self, port: Port[int], folder: str, name: str, amount: int) -> None:
        """Adds to a decimal number, which begins at 0; answers with the sum."""
        known = self._values.setdefault(folder, {})
        self._count += name not in known
        total = int(known.get(name, b"0")) + amount
        known[name] = str(total).encode()
        port.send(total)
        self._tell(folder, name)

    @endpoint(explicit_response_port=True, instrument=False)
    def has(self, port: Port[bool], keys: Sequence[tuple[str, str]]) -> None:
        """True if all of these (folder, name) have a value. Answers at once."""
        port.send(all(name in self._values.get(folder, {}) for folder, name in keys))

    @endpoint(explicit_response_port=True, instrument=False)
    def delete(self, port: Port[bool], folder: str, name: str) -> None:
        """Deletes a value; answers whether there was one."""
        found = self._values.get(folder, {}).pop(name, None) is not None
        self._count -= found
        port.send(found)

    @endpoint(explicit_response_port=True, instrument=False)
    def swap(self, port: Port[bytes], folder: str, name: str, expected: bytes, desired: bytes) -> None:
        """Sets `desired` where the value is `expected`, or where there is none and b"" is expected. Answers with the value
        from here on; with `expected` where there is none."""
        known = self._values.setdefault(folder, {})
        value = known.get(name)
        if value == expected or (value is None and not expected):
            self._count += value is None
            known[name] = value = desired
            self._tell(folder, name)
        port.send(expected if value is None else value)

    @endpoint(explicit_response_port=True, instrument=False)
    def count(self, port: Port[int]) -> None:
        """Returns how many values there are."""
        port.send(self._count)

    @endpoint(instrument=False)
    def lose(self, group: str, why: str) -> None:
        """A process will not come to `group` (the first two parts of its folders): those who wait there get
        RuntimeError(why)."""
        while len(self._lost) >= GROUPS:
            del self._lost[next(iter(self._lost))]
        self._lost.setdefault(group, why)
        waiting = [(folder, port) for folder, _, port in self._waiting if _group(folder) == group]
        self._waiting = [one for one in self._waiting if _group(one[0]) != group]
        for _, port in waiting:
            port.exception(RuntimeError(why))

    @endpoint(instrument=False)
    def leave(self, group: str, leaving: int) -> None:
        """One of the `leaving` streams that the dropped group `group` had, on all its processes, is done with it. The last
        one takes its values along."""
        left = self._left[group] = self._left.get(group, 0) + 1
        if left < leaving:
            return
        del self._left[group]
        for folder in [folder for folder in self._values if folder.startswith(f"{group}/")]:
            self._count -= len(self._values.pop(folder))

    @endpoint(instrument=False)
    def end(self, why: str) -> None:
        """Ends the group: all who wait, or ask later, get RuntimeError(why)."""
        self._ended = why
        waiting, self._waiting = self._waiting, []
        for _, _, port in waiting:
            port.exception(RuntimeError(why))

    def _tell(self, folder: str, name: str) -> None:
        """Answers those who wait for this value."""
        known = self._values[folder]
        ready = [waiting for waiting in self._waiting if waiting[:2] == (folder, name)]
        self._waiting = [waiting for waiting in self._waiting if waiting[:2] != (folder, name)]
        for _, _, asker in ready:
            asker.send(dict(known))


class MessageStore(dist.Store):
    """A torch Store on a Rendezvous, as torch.distributed.Store documents it. `call(name, seconds, *args)` calls one of the
    Rendezvous's endpoints and waits for the answer.

    With `write_once` all values of a folder are kept that came beside one that was asked for: gloo writes each address
    once, and every rank reads those of all others. Threads of nccl (its watchdog, its heartbeat) use a store too, so
    nothing here belongs to one thread.
    """

    def __init__(self, call: Callable[..., Any], seconds: float, write_once: bool = False) -> None:
        super().__init__()
        self._call = call
        self._seconds = seconds
        self._write_once = write_once
        self._seen: dict[str, bytes] = {}
        self._lock = Lock()

    def set(self, key: str, value: object) -> None:
        self._call("put", self._seconds, *_split(key), _encoded(value))

    def get(self, key: str) -> bytes:
        return self._find(key, self._seconds)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        end = time.monotonic() + (timeout.total_seconds() if timeout is not None else self._seconds)
        for key in keys:
            self._find(key, max(0.0, end - time.monotonic()))

    def add(self, key: str, amount: int) -> int:
        return int(self._call("add", self._seconds, *_split(key), amount))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._call("has", AT_ONCE, [_split(key) for key in keys]))

    def delete_key(self, key: str) -> bool:
        with self._lock:
            self._seen.pop(key, None)
        return bool(self._call("delete", self._seconds, *_split(key)))

    def compare_set(self, key: str, expected: object, desired: object) -> bytes:
        return bytes(self._call("swap", self._seconds, *_split(key), _encoded(expected), _encoded(desired)))

    def num_keys(self) -> int:
        return int(self._call("count", AT_ONCE))

    def clone(self) -> MessageStore:
        return self  # any thread may use it

    def set_timeout(self, timeout: timedelta) -> None:
        self._seconds = timeout.total_seconds()

    # By these names torch's C++ finds the methods of a Store that is written in Python.
    deleteKey = delete_key
    getNumKeys = num_keys

    def _find(self, key: str, seconds: float) -> bytes:
        folder, name = _split(key)
        if self._write_once:
            with self._lock:
                value = self._seen.get(key)
            if value is not None:
                return value
        found = self._call("look", seconds, folder, name)
        if self._write_once:
            with self._lock:
                self._seen.update({f"{folder}/{name}": value for name, value in found.items()})
        return bytes(found[name])


def _encoded(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _group(folder: str) -> str:
    return "/".join(folder.split("/", 2)[:2])


def _split(key: str) -> tuple[str, str]:
    folder, _, name = key.rpartition("/")
    return folder, name
