"""NIXL moves the bytes; a stream to the owner says where they are, and that they stay there meanwhile.

For each part of a transfer the owner lends the buffer over the stream (`tcp_wire`), which keeps it registered until we give
it back or are gone: a drop waits for it. Local memory is registered for the time of the part. Where the owner has no NIXL,
or NIXL fails, the transfer goes over streams alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from monarch.actor import bind_context, stream_obstacle
from monarch.rdma.backends import nixl_agent, tcp
from monarch.rdma.backends.detour import Avoided, reroute
from monarch.rdma.backends.nixl_agent import NixlError, NoAgentError
from monarch.rdma.backends.tcp_wire import LEND, LEND_WRITABLE, LENGTH, OK, REQUEST, UNSUPPORTED, Way
from monarch.rdma.handle import Handle, Owner
from monarch.rdma.transfer import Transfer

PART = 256 << 20  # bytes for which a buffer is lent at a time
SHOWN = 1 << 20  # bytes that describe a buffer, at most
AVOID = 60.0  # seconds in which it is not tried with an owner with whom it failed
_SPIN = 50  # looks at a transfer without a pause between them


class Nixl:
    """Copies by NIXL, where the setting rdma_nixl allows it on both sides."""

    name = "nixl"
    far = False

    def obstacle(self, handle: Handle) -> str:
        if handle.device is not None:
            return "memory of devices is not registered with NIXL"
        try:
            nixl_agent.agent()
        except NoAgentError as exc:
            return str(exc)
        return stream_obstacle(handle.service)

    def start(self, transfer: Transfer) -> None:
        if transfer.late() or unreachable.why(transfer.handle.owner) or not transfer.size:
            _by_tcp(transfer)
        else:
            tcp.lanes_to(transfer.handle.owner).begin(_NixlJob(transfer))


class _NixlJob(tcp.Job):
    """A transfer whose chunks are parts for which the buffer is lent."""

    depth = 1

    def __init__(self, transfer: Transfer) -> None:
        super().__init__(transfer)
        self._given_up = False
        self._go_elsewhere: Callable[[], None] = bind_context(partial(_by_tcp, transfer))

    def chunk_bytes(self) -> int:
        return PART

    def ask(self, way: Way, at: int, count: int) -> None:
        transfer, handle = self.transfer, self.transfer.handle
        operation = LEND_WRITABLE if transfer.write else LEND
        way.send([REQUEST.pack(operation, handle.number, handle.token, transfer.offset + at, count)])

    def answer(self, way: Way, at: int, count: int) -> int:
        status = memoryview(bytearray(1))
        way.receive(status)
        if status[0] != OK:
            return status[0]
        length = memoryview(bytearray(LENGTH.size))
        way.receive(length)
        (size,) = LENGTH.unpack(length)
        if size > SHOWN:
            raise NixlError(f"the owner describes its memory with {size} bytes")
        shown = bytearray(size)
        way.receive(memoryview(shown))
        try:
            self._move(bytes(shown), at, count)
        except NixlError as exc:
            logging.getLogger("monarch").info("%s; the transfer goes over TCP", exc)
            return UNSUPPORTED
        finally:
            way.send([b"\0"])
        return OK

    def _move(self, shown: bytes, at: int, count: int) -> None:
        transfer, handle = self.transfer, self.transfer.handle
        agent = _agent()
        name = agent.meet(handle.token, shown)
        here, there = transfer.memory.address + at, handle.address + transfer.offset + at
        try:
            agent.move(name, transfer.write, transfer.memory, here, there, count, self._pause)
        except NixlError:
            agent.avoid(name)
            raise

    def _pause(self, looks: int) -> None:
        if self.transfer.late():
            raise tcp.Late
        if looks >= _SPIN:
            _nap.wait(min(1e-3, 1e-5 * looks))

    def refused(self, status: int) -> None:
        if status == UNSUPPORTED:
            self._given_up = True
            unreachable.add(self.transfer.handle.owner, "NIXL failed with it", AVOID)
        else:
            super().refused(status)

    def take(self) -> tuple[int, int] | None:
        return None if self._given_up else super().take()

    def _elsewhere(self) -> None:
        self._go_elsewhere()


_nap = threading.Event()  # never set
unreachable: Avoided[Owner] = Avoided()


def _agent() -> nixl_agent.Agent:
    try:
        return nixl_agent.agent()
    except NoAgentError as exc:
        raise NixlError(str(exc)) from exc


def _by_tcp(transfer: Transfer) -> None:
    reroute(transfer, lambda handle: tcp.Streams())
