"""The buffer is on another host, and both hosts have RDMA devices: their devices move the bytes, by libibverbs.

Nobody's interpreter takes part once two devices are connected and the buffer's keys are known; both happens with the first
transfer, over the actors' messages (`requester`; the owner's side is `responder`). A transfer is spread over pairs
of devices, `rdma_min_stripe_size_kb` or more each. Whatever fails is asked of the owner and done over, at most ATTEMPTS
times, on new queue pairs and with new keys; after that the transfer fails, and owners that cannot be reached at all are left
to the next path for AVOID seconds.

A read is true if the buffer's control word, read by the same device after the data, says so. About writes and drops see
`responder`.

**Never run on hardware.** Reads and writes between two processes have run over soft RoCE (rdma_rxe of Linux 6.1, emulated),
by the real package. All else runs in tests against an imitation of the binding that copies between processes: real cards with
their errors and timing, InfiniBand, several devices, registration by dma-buf and everything about speed have not been tried.

Memory of a GPU is read and written by its owner's device where it is. A write of which a device has heard the end may be on
its way to the GPU still, and not all GPUs order what other devices write before what their kernels read. So each queue pair
that wrote reads a few of the bytes back: no read passes a write before it on its way to the GPU (PCI Express Base
Specification, transaction ordering), so once it is answered the bytes are there.
"""

from __future__ import annotations

import contextvars
import logging
from time import perf_counter
from typing import NamedTuple

from monarch._errors import RDMAError
from monarch._linux.locks import Lock
from monarch.rdma import copying, manager
from monarch.rdma.backends import through_actors
from monarch.rdma.backends.ibverbs import plaintext
from monarch.rdma.backends.ibverbs.devices import NoDevicesError, devices
from monarch.rdma.backends.ibverbs.queue_pair_link import LinkGoneError, QueuePairLink
from monarch.rdma.backends.ibverbs.registration_cache import HeldRegistration
from monarch.rdma.backends.ibverbs.requester import ConnectedStripe, ControlWord, Requester, UnreachableError, engine
from monarch.rdma.backends.ibverbs.send_queue import TransferFault, WorkRequest, split
from monarch.rdma.backends.tcp import backend as tcp
from monarch.rdma.buffer_handle import BufferHandle, Owner, buffer_dropped
from monarch.rdma.registry import WORD
from monarch.rdma.rerouting import AvoidedRoutes, reroute
from monarch.rdma.transfer import Transfer

ATTEMPTS = 3
DISTURBED = 16  # times that a transfer is begun again because another one's failure closed its queue pair
AVOID = 60.0  # seconds in which it is not tried with an owner that cannot be reached this way
SPIN = 50e-6  # seconds that a small transfer is waited for before another thread waits


class Ibverbs:
    """Copies that devices do, between hosts."""

    name = "ibverbs"
    uses_network = False
    takes_devices = False

    def why_unavailable(self, handle: BufferHandle) -> str:
        try:
            devices()
        except NoDevicesError as exc:
            return str(exc)
        return unreachable.why(memory_at(handle)) or plaintext.why_unavailable(handle)

    def start(self, transfer: Transfer) -> None:
        if transfer.late():
            transfer.finish(transfer.timed_out())
        elif not transfer.size:
            transfer.finish()
        else:
            begin(transfer)


def begin(transfer: Transfer) -> None:
    try:
        mine = engine()
    except NoDevicesError as exc:  # switched off since the path was chosen
        take_next_path(transfer, str(exc))
        return
    why = unreachable.why(memory_at(transfer.handle))
    if why:
        take_next_path(transfer, why)
    else:
        StripedTransfer(mine, transfer).begin()


def take_next_path(transfer: Transfer, why: str) -> None:
    """Has the next path do the transfer. Needs a context."""
    reroute(transfer, (tcp.TcpStreams(), through_actors.ThroughActors()), [f"ibverbs: {why}"])


# --- owners that cannot be reached


class KeyOwner(NamedTuple):
    """An owner's memory of one kind: on a GPU, or the host's. That one cannot be registered says nothing of the other."""

    owner: Owner
    gpu: bool


def memory_at(handle: BufferHandle) -> KeyOwner:
    return KeyOwner(handle.owner, handle.device is not None)


unreachable: AvoidedRoutes[KeyOwner] = AvoidedRoutes()


def avoid(handle: BufferHandle, why: str) -> None:
    if unreachable.add(memory_at(handle), why, AVOID):
        what = "memory of a GPU of " if handle.device is not None else ""
        logging.getLogger("monarch").warning("transfers to %s%s do not use RDMA devices: %s", what, handle.owner, why)


# --- transfers


class StripedTransfer:
    """A transfer on its way: its parts, and what becomes of it when they have ended."""

    def __init__(self, engine: Requester, transfer: Transfer) -> None:
        self.transfer = transfer
        self._engine = engine
        self._context = contextvars.copy_context()  # it may go on on another's thread
        self._lock = Lock()
        self._attempts = 0
        self._disturbed = 0
        self._over = False  # or it goes on on another thread
        self._left = 0
        self._faults: list[TransferFault] = []
        self._held: list[HeldRegistration] = []
        self._routes: list[ConnectedStripe] = []
        self._word: ControlWord | None = None
        self._pushed: list[ControlWord] = []  # what is read back of a GPU's memory lands here

    def begin(self) -> None:
        """Now, when all is known and connected and the transfer is small; else once it is."""
        routes = self._engine.routes(self.transfer)
        if routes is None:
            self._context.run(self._prepare)
        elif self.transfer.size <= copying.INLINE:
            self._launch(routes)
            self._spin(routes)
        else:
            copying.later(lambda: self._launch(routes))

    def _prepare(self) -> None:
        try:
            manager.start(self._connect)
        except Exception as exc:  # this process is ending, or the thread has no context
            self.transfer.finish(exc)

    async def _connect(self) -> None:
        import asyncio

        transfer = self.transfer
        try:
            encrypted = plaintext.encrypted(transfer.handle)
            if encrypted and (why := plaintext.forbidden()):
                raise UnreachableError(why)
            async with asyncio.timeout(max(0.0, transfer.left())):
                routes = await self._engine.connect(transfer, transfer.handle.service.verbs.call_one, encrypted)
        except TimeoutError:
            transfer.finish(transfer.timed_out())
        except UnreachableError as exc:
            self._give_up(str(exc))
        except BaseException as exc:
            transfer.finish(through_actors.reason(exc, transfer.handle))
        else:
            copying.later(lambda: self._launch(routes))

    def _give_up(self, why: str) -> None:
        avoid(self.transfer.handle, why)
        self._context.copy().run(take_next_path, self.transfer, why)

    def _launch(self, routes: list[ConnectedStripe]) -> None:
        """Registers the local memory and posts the requests."""
        transfer = self.transfer
        if transfer.late():
            transfer.finish(transfer.timed_out())
            return
        self._routes, self._faults = routes, []
        try:
            parts = self._parts(routes)
        except OSError as exc:
            self._let_go()
            self._give_up(f"{transfer.memory!r} cannot be registered: {exc}")
        except Exception as exc:
            self._let_go()
            transfer.finish(exc)
        else:
            self._post(parts)

    def _parts(self, routes: list[ConnectedStripe]) -> list[tuple[QueuePairLink, StripeJob]]:
        transfer, handle = self.transfer, self.transfer.handle
        held: dict[str, HeldRegistration] = {}
        parts = []
        for route in routes:
            if route.here not in held:
                held[route.here] = self._engine.memory.hold(route.here, transfer.memory, not transfer.write)
                self._held.append(held[route.here])
            _, at, size = route.stripe
            local, remote = transfer.memory.address + at, handle.address + transfer.offset + at
            requests = split(local, remote, size, self._engine.devices.device(route.here).limits.message)
            part = StripeJob(self, route.link, requests, transfer.write, held[route.here].key, route.key.memory)
            parts.append((route.link, part))
        return parts

    def _post(self, parts: list[tuple[QueuePairLink, StripeJob]]) -> None:
        self._left = len(parts)
        for link, part in parts:
            try:
                link.begin(part)
            except LinkGoneError:
                part.ended(TransferFault.FLUSHED)

    def _spin(self, routes: list[ConnectedStripe]) -> None:
        """Looks for completions without a pause for a moment: no other thread has to wake up for a small transfer."""
        end = perf_counter() + SPIN
        while not self._over and perf_counter() < end:
            for route in routes:
                route.link.look()

    def ended(self, fault: TransferFault | None) -> None:
        """Hears that a part has ended."""
        with self._lock:
            if fault is not None:
                self._faults.append(fault)
            self._left -= 1
            if self._left:
                return
        self._all_ended()

    def _all_ended(self) -> None:
        faults, word = self._faults, self._word
        if not faults and not self.transfer.write and word is None:
            self._look_at_word()
            return
        if not faults and self.transfer.write and self.transfer.handle.device is not None and not self._pushed:
            self._push()
            return
        self._word, self._over = None, True
        self._let_go()
        pushed, self._pushed = self._pushed, []
        for one in pushed:
            one.close()
        value = 0 if word is None else word.value()
        if word is not None:
            word.close()
        transfer = self.transfer
        if not faults:
            true = word is None or value == transfer.handle.token
            if not true:
                self._engine.forget(transfer.handle)
            transfer.finish(None if true else buffer_dropped(transfer.handle))
        elif TransferFault.LATE in faults:
            transfer.finish(transfer.timed_out())
        else:
            self._failed(next((fault for fault in faults if fault is not TransferFault.FLUSHED), TransferFault.FLUSHED))

    def _look_at_word(self) -> None:
        route = self._routes[0]
        try:
            word = self._word = self._engine.word(route.here)
        except OSError:
            self._faults.append(TransferFault.LOCAL)
            self._left = 0
            self._let_go()
            self._failed(TransferFault.LOCAL)
            return
        request = WorkRequest(word.address, self.transfer.handle.word, WORD.size)
        self._post([(route.link, StripeJob(self, route.link, [request], False, word.key, route.key.word))])

    def quiet(self, link: QueuePairLink) -> None:
        """Nothing has come over that link for a while: the owner is asked whether its end is there."""
        handle = self.transfer.handle
        try:
            self._context.copy().run(manager.start, lambda: self._engine.check(handle, link))
        except Exception as exc:  # this process is ending
            logging.getLogger("monarch").debug("RDMA: nobody asks after a quiet queue pair: %r", exc)

    def _push(self) -> None:
        """Reads back what was written to a GPU, over each queue pair that wrote: see above."""
        transfer = self.transfer
        remote, count = transfer.handle.address + transfer.offset, min(WORD.size, transfer.size)
        parts = []
        try:
            for route in self._routes:
                self._pushed.append(self._engine.word(route.here))
                word = self._pushed[-1]
                request = WorkRequest(word.address, remote, count)
                parts.append((route.link, StripeJob(self, route.link, [request], False, word.key, route.key.memory)))
        except OSError:
            self._faults.append(TransferFault.LOCAL)
            self._all_ended()
            return
        self._post(parts)

    def _failed(self, fault: TransferFault) -> None:
        """Does over what was done: that does no harm, for both sides leave the bytes alone meanwhile."""
        transfer = self.transfer
        if fault is TransferFault.FLUSHED:
            self._disturbed += 1
        else:
            self._attempts += 1
        self._engine.forget(transfer.handle)
        if transfer.late():
            transfer.finish(transfer.timed_out())
        elif self._attempts < ATTEMPTS and self._disturbed < DISTURBED:
            self._context.copy().run(self._prepare)
        else:
            if fault is TransferFault.UNREACHABLE:
                avoid(transfer.handle, fault.value)
            more = "; part of the write may have arrived" if transfer.write else ""
            transfer.finish(
                RDMAError(f"buffer {transfer.handle.number} of {transfer.handle.owner}: {fault.value}{more}")
            )

    def _let_go(self) -> None:
        held, self._held = self._held, []
        for one in held:
            one.release()


class StripeJob:
    """The part of a transfer that one link moves."""

    def __init__(
        self,
        errand: StripedTransfer,
        link: QueuePairLink,
        requests: list[WorkRequest],
        write: bool,
        key: int,
        remote_key: int,
    ) -> None:
        self._errand = errand
        self._link = link
        self.requests = requests
        self.write = write
        self.key = key
        self.remote_key = remote_key
        self.deadline = errand.transfer.deadline

    def ended(self, fault: TransferFault | None) -> None:
        self._errand.ended(fault)

    def quiet(self) -> None:
        self._errand.quiet(self._link)
