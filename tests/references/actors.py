"""Actors that make, take and hand on references, for several files of tests."""

from __future__ import annotations

import ctypes
import gc
import os
from typing import Any

from monarch.actor import Actor, Port, concurrent_endpoint, endpoint
from monarch.references import Fetched, ObjectRef, put
from monarch.references import store as stores
from monarch.references.mapping import idle


class Maker(Actor):
    """Makes values, keeps references of others."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    @endpoint
    def squares(self, number: int) -> list[int]:
        return [index * index for index in range(number)]

    @endpoint
    def tell(self, port: Port[Any], value: Any) -> None:
        port.send({"a": value if isinstance(value, ObjectRef) else put(value)})

    @endpoint
    def zeros(self, size: int) -> bytearray:
        return bytearray(size)

    @endpoint
    def fail(self) -> None:
        raise ValueError("no value today")

    @endpoint
    def put(self, value: Any) -> ObjectRef[Any]:
        return put(value)

    @endpoint
    def total(self, ref: ObjectRef[list[int]]) -> int:
        return sum(ref.get(30))

    @endpoint
    async def total_later(self, ref: ObjectRef[list[int]]) -> int:
        return sum(await ref)

    @endpoint
    def back(self, value: Any) -> Any:
        return value

    @endpoint
    def first_of(self, ref: ObjectRef[list[ObjectRef[Any]]]) -> Any:
        return ref.get(30)[0].get(30)

    @endpoint
    def keep_it(self, value: Any) -> None:
        self.kept.append(value)

    @endpoint
    def keep_value(self, ref: ObjectRef[Any]) -> None:
        self.kept.append(ref.get(30))

    @endpoint
    def sum_of_kept(self) -> int:
        return sum(int(value.sum()) for value in self.kept)

    @endpoint
    def forget(self) -> None:
        self.kept.clear()

    @endpoint
    def read(self, value: Fetched[Any]) -> tuple[int, int]:
        """Returns where the array lies here, and its sum."""
        return int(value.ctypes.data), int(value.sum())

    @endpoint
    def write(self, value: Fetched[Any]) -> int:
        """Writes to an array all the same, as torch.from_numpy lets who uses it; returns where the array lies here."""
        ctypes.memset(value.ctypes.data, 255, 1)
        return int(value.ctypes.data)

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def end(self) -> None:
        os._exit(3)

    @endpoint
    def total_size(self, ref: ObjectRef[list[bytes]]) -> int:
        return sum(map(len, ref.get(60)))

    @endpoint
    def left(self) -> int:
        """Counts what is kept in this process: references, and mappings of their memory that are in use. An error that was
        raised holds what was local there, and itself."""
        gc.collect()
        with open("/proc/self/maps", encoding="ascii") as file:
            mappings = sum("monarch-reference" in line and "rw-p" in line for line in file) - len(idle)
        store = stores.store()
        return 0 if store.is_clean and not mappings else 1 + store.number + mappings


class Taker(Actor):
    """Takes the values of references."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @endpoint
    def total(self, numbers: Fetched[list[int]], factor: int = 1) -> int:
        self.seen.append(numbers)
        return sum(numbers) * factor

    @endpoint
    def kinds(self, ref: ObjectRef[list[int]], *rest: Fetched[list[int]], **named: Fetched[list[int]]) -> list[str]:
        return [type(arg).__name__ for arg in (ref, *rest, *named.values())]

    @endpoint
    def bytes_of(self, value: Fetched[list[bytearray]]) -> int:
        return sum(map(len, value))

    @endpoint
    def before(self) -> int:
        return len(self.seen)


class AsyncTaker(Actor):
    """Takes the values of references on an event loop."""

    @endpoint
    async def total(self, numbers: Fetched[list[int]]) -> int:
        return sum(numbers)

    @concurrent_endpoint
    async def bytes_of(self, value: Fetched[list[bytearray]]) -> int:
        return sum(map(len, value))

    @concurrent_endpoint
    async def total_beside(self, *numbers: Fetched[list[int]]) -> int:
        return sum(map(sum, numbers))

    @endpoint(explicit_response_port=True)
    def answered(self, port: Port[int], numbers: Fetched[list[int]]) -> None:
        port.send(sum(numbers))

    @concurrent_endpoint
    async def here(self) -> str:
        return "here"
