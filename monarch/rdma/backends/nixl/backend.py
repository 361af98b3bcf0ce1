"""NIXL moves the bytes; a stream to the owner says where they are, and that they stay there meanwhile.

For each part of a transfer the owner lends the buffer over the stream (`protocol`), which keeps it registered until we give
it back or are gone: a drop waits for it. Local memory is registered for the time of the part. Where the owner has no NIXL,
or NIXL fails, the transfer goes over streams alone.

Memory of GPUs is read and written where it is, at both ends. Where UCX cannot register it, that is tried again after a while
only; until then it goes through pinned memory.

A job that uses TLS has no streams, and so no NIXL.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from monarch._devices.memory import interface
from monarch.actor import bind_context
from monarch.actor.lowlevel import stream_obstacle
from monarch.rdma.backends.nixl import nixl_agent
from monarch.rdma.backends.nixl.nixl_agent import MemoryRefusedError, NixlError, NoAgentError
from monarch.rdma.backends.tcp import backend as tcp
from monarch.rdma.backends.tcp.protocol import LEND, LEND_WRITABLE, LENGTH, OK, REQUEST, UNSUPPORTED, PolledStream
from monarch.rdma.buffer_handle import BufferHandle, Owner
from monarch.rdma.rerouting import AvoidedRoutes, hand_over
from monarch.rdma.transfer import Transfer

PART = 256 << 20  # bytes for which a buffer is lent at a time
SHOWN = 1 << 20  # bytes that describe a buffer, at most
AVOID = 60.0  # seconds in which it is not tried with an owner with whom it failed
_SPIN = 50  # looks at a transfer without a pause between them


class Nixl:
    """Copies by NIXL, where the setting rdma_nixl allows it on both sides."""

    name = "nixl"
    uses_network = False
    takes_devices = True

    def why_unavailable(self, handle: BufferHandle) -> str:
        if handle.device is not None and handle.device.card.type not in nixl_agent.GPUS:
            return f"NIXL knows no devices of type {handle.device.card.type}"
        try:
            nixl_agent.agent()
        except NoAgentError as exc:
            return str(exc)
        return stream_obstacle(handle.service)

    def start(self, transfer: Transfer) -> None:
        if transfer.late() or not transfer.size:
            hand_over(transfer, tcp.TcpStreams())
        elif unreachable.why(_between(transfer)):
            _reroute(transfer)
        else:
            tcp.lanes_to(transfer.handle.owner).begin(_NixlJob(transfer))


class _StagedNixl(Nixl):
    """NIXL between pinned memory and the owner."""

    takes_devices = False


class NixlRoute(NamedTuple):
    """An owner, and whether memory of a GPU is at either end: what fails with that may do without."""

    owner: Owner
    gpu: bool


def _between(transfer: Transfer) -> NixlRoute:
    return NixlRoute(transfer.handle.owner, transfer.handle.device is not None or transfer.memory.device is not None)


def _reroute(transfer: Transfer) -> None:
    """Has NIXL do it through pinned memory where only this end is a GPU's, else streams."""
    handle = transfer.handle
    staged = transfer.memory.device is not None and handle.device is None
    if staged and not unreachable.why(NixlRoute(handle.owner, False)):
        hand_over(transfer, _StagedNixl())
    else:
        hand_over(transfer, tcp.TcpStreams())


class _NixlJob(tcp.StreamJob):
    """A transfer whose chunks are parts for which the buffer is lent."""

    depth = 1

    def __init__(self, transfer: Transfer) -> None:
        super().__init__(transfer, PART)
        self._given_up = False
        self._next_path: Callable[[], None] = bind_context(partial(_reroute, transfer))

    @property
    def at_once(self) -> bool:
        """A small transfer goes as one request of the stream, which knows the host's memory only."""
        return super().at_once and self.transfer.memory.device is None

    def ask(self, way: PolledStream, at: int, count: int) -> None:
        transfer, handle = self.transfer, self.transfer.handle
        operation = LEND_WRITABLE if transfer.write else LEND
        way.send([REQUEST.pack(operation, handle.number, handle.token, transfer.offset + at, count)])

    def answer(self, way: PolledStream, at: int, count: int) -> int:
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
        remote, described = nixl_agent.parsed(shown)
        name = agent.meet(handle.token, described)
        here, there = transfer.memory.address + at, handle.address + transfer.offset + at
        if transfer.memory.device is not None:
            interface().reach(transfer.after)
        try:
            agent.move(name, transfer.write, transfer.memory, here, there, remote, count, self._pause)
        except MemoryRefusedError:  # by this side; the owner's agent is well
            raise
        except NixlError:
            agent.avoid(name)
            raise

    def _pause(self, looks: int) -> None:
        if self.transfer.late():
            raise tcp.DeadlineExceededError
        if looks >= _SPIN:
            _nap.wait(min(1e-3, 1e-5 * looks))

    def refused(self, status: int) -> None:
        if status == UNSUPPORTED:
            self._given_up = True
            unreachable.add(_between(self.transfer), "NIXL failed with it", AVOID)
        else:
            super().refused(status)

    def take(self) -> tuple[int, int] | None:
        return None if self._given_up else super().take()

    def _reroute(self) -> None:
        self._next_path()


_nap = threading.Event()  # never set
unreachable: AvoidedRoutes[NixlRoute] = AvoidedRoutes()


def _agent() -> nixl_agent.NixlAgent:
    try:
        return nixl_agent.agent()
    except NoAgentError as exc:
        raise NixlError(str(exc)) from exc
