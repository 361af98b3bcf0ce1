"""An actor that owns buffers and one that reads and writes them."""

from __future__ import annotations

import os
from typing import Any

import monarch
from monarch.actor import Actor, endpoint
from monarch.rdma import RDMAAction, RDMABuffer, paths
from tests.support.patience import TIMEOUT


def call(endpoint: Any, *args: Any, **kwargs: Any) -> Any:
    return endpoint.call_one(*args, **kwargs).get(TIMEOUT)


class Owner(Actor):
    """Keeps bytearrays by number and registers them."""

    def __init__(self) -> None:
        self.data: dict[int, bytearray] = {}

    @endpoint
    def make(self, data: bytes) -> tuple[int, RDMABuffer]:
        number = len(self.data)
        self.data[number] = bytearray(data)
        return number, RDMABuffer(self.data[number])

    @endpoint
    def make_read_only(self, data: bytes) -> RDMABuffer:
        return RDMABuffer(data)

    @endpoint
    def bytes_of(self, number: int) -> bytes:
        return bytes(self.data[number])

    @endpoint
    def set(self, number: int, data: bytes) -> None:
        self.data[number][:] = data

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def registered(self) -> int:
        from monarch.rdma.registry import registry

        return len(registry())


class Reader(Actor):
    """Reads and writes others' buffers; what goes wrong comes back as (type, text)."""

    @endpoint
    def use(self, path: str) -> None:
        """From here on no path but this one, or every one."""
        monarch.configure(rdma_max_chunk_size_mb=1 if path == "actor" else 64)  # several chunks, in tests as well
        paths.allow(*([path] if path else ["local", "process_vm", "actor"]))

    @endpoint
    def path(self, buffer: RDMABuffer) -> str:
        return buffer.path

    @endpoint
    def read(self, buffer: RDMABuffer, room: int, options: dict[str, Any]) -> Any:
        into = bytearray(b"." * room)
        return outcome(lambda: buffer.read_into(into, **options).get(), into)

    @endpoint
    async def read_async(self, buffer: RDMABuffer, room: int) -> bytes:
        into = bytearray(b"." * room)
        await buffer.read_into(into)
        return bytes(into)

    @endpoint
    def write(self, buffer: RDMABuffer, data: bytes, options: dict[str, Any]) -> Any:
        return outcome(lambda: buffer.write_from(data, **options).get(), data)

    @endpoint
    def drop(self, buffer: RDMABuffer) -> None:
        buffer.drop().get()

    @endpoint
    def forget(self, buffer: RDMABuffer) -> None:
        """Drops it and does not look."""
        buffer.drop()

    @endpoint
    def act(self, reads: list[tuple[RDMABuffer, int]], writes: list[tuple[RDMABuffer, bytes]], times: int = 1) -> Any:
        into = [bytearray(room) for _, room in reads]
        action = RDMAAction()
        for (buffer, _), one in zip(reads, into, strict=True):
            action.read_remote(one, buffer)
        for buffer, data in writes:
            action.write_remote(buffer, data)
        for _ in range(times):
            failed = outcome(lambda: action.submit().get(), b"")
            if failed:
                return failed
        return [bytes(one) for one in into]

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def outcome(do: Any, data: Any) -> Any:
    try:
        do()
    except Exception as exc:
        return type(exc).__name__, str(exc)
    return bytes(data)


def use_path(name: str, *also: str) -> None:
    """Only that path in this process, and others beside it; "" for all that need no RDMA device."""
    paths.allow(*([name, *also] if name else ["local", "device_ipc", "process_vm", "tcp", "actor"]))
