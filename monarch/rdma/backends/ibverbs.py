"""The buffer is on another host, and both hosts have RDMA devices: their devices move the bytes, by libibverbs.

Nobody's interpreter takes part once two devices are connected and the buffer's keys are known; both happens with the first
transfer, over the actors' messages (`ibverbs_messages`; the owner's side is `ibverbs_owner`). A transfer is spread over pairs
of devices, `rdma_min_stripe_size_kb` or more each. Whatever fails is asked of the owner and done over, at most ATTEMPTS
times, on new queue pairs and with new keys; after that the transfer fails, and owners that cannot be reached at all are left
to the next path for AVOID seconds.

A read is true if the buffer's control word, read by the same device after the data, says so. About writes and drops see
`ibverbs_owner`.

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
import itertools
import logging
import mmap
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch._errors import RDMAError
from monarch.actor import stream_obstacle
from monarch.config import settings
from monarch.rdma import copying, manager
from monarch.rdma.backends import actor, tcp
from monarch.rdma.backends import ibverbs_memory as memories
from monarch.rdma.backends.detour import Avoided, first_usable, reroute
from monarch.rdma.backends.ibverbs_binding import LOCAL_WRITE, Pair, Registration
from monarch.rdma.backends.ibverbs_choice import ChoiceError, affinity, pairs, stripes
from monarch.rdma.backends.ibverbs_devices import Devices, NoDevicesError, devices
from monarch.rdma.backends.ibverbs_link import Link, LinkGoneError, Watch
from monarch.rdma.backends.ibverbs_memory import Held, LocalMemory
from monarch.rdma.backends.ibverbs_messages import End, Key, Lend, Lent, Meet, checked
from monarch.rdma.backends.ibverbs_queue import Fault, Request, Segment, split
from monarch.rdma.backends.process_vm import dropped
from monarch.rdma.handle import Handle, Owner
from monarch.rdma.once import OncePerProcess
from monarch.rdma.registry import WORD
from monarch.rdma.transfer import Transfer

if TYPE_CHECKING:
    import asyncio

ATTEMPTS = 3
DISTURBED = 16  # times that a transfer is begun again because another one's failure closed its queue pair
LINKS = 256  # connected queue pairs; the one used longest ago that is idle is closed
KNOWN = 4096  # buffers whose keys are kept; the one met first is forgotten
AVOID = 60.0  # seconds in which it is not tried with an owner that cannot be reached this way
SPIN = 50e-6  # seconds that a small transfer is waited for before another thread waits
_KIB = 1 << 10


class Ibverbs:
    """Copies that devices do, between hosts."""

    name = "ibverbs"
    far = False

    def obstacle(self, handle: Handle) -> str:
        try:
            devices()
        except NoDevicesError as exc:
            return str(exc)
        return unreachable.why(memory_at(handle)) or stream_obstacle(handle.service)

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
        elsewhere(transfer, str(exc))
        return
    why = unreachable.why(memory_at(transfer.handle))
    if why:
        elsewhere(transfer, why)
    else:
        Errand(mine, transfer).begin()


def elsewhere(transfer: Transfer, why: str) -> None:
    """The transfer goes by the next path. Needs a context."""
    ways = (tcp.Streams(), actor.ThroughActors())
    reroute(transfer, lambda handle: first_usable(ways, handle, [f"ibverbs: {why}"]))


# --- owners that cannot be reached


class Whose(NamedTuple):
    """An owner's memory of one kind: on a GPU, or the host's. That one cannot be registered says nothing of the other."""

    owner: Owner
    gpu: bool


def memory_at(handle: Handle) -> Whose:
    return Whose(handle.owner, handle.device is not None)


unreachable: Avoided[Whose] = Avoided()


def avoid(handle: Handle, why: str) -> None:
    if unreachable.add(memory_at(handle), why, AVOID):
        what = "memory of a GPU of " if handle.device is not None else ""
        logging.getLogger("monarch").warning("transfers to %s%s do not use RDMA devices: %s", what, handle.owner, why)


class UnreachableError(Exception):
    """The owner cannot be reached by devices; the text says why."""


# --- transfers


class Route(NamedTuple):
    """A pair of devices that is connected, and the owner's keys for its side."""

    here: str
    link: Link
    key: Key


class Errand:
    """A transfer on its way: its parts, and what becomes of it when they have ended."""

    def __init__(self, engine: Engine, transfer: Transfer) -> None:
        self.transfer = transfer
        self._engine = engine
        self._context = contextvars.copy_context()  # it may go on on another's thread
        self._lock = threading.Lock()
        self._attempts = 0
        self._disturbed = 0
        self._over = False  # or it goes on on another thread
        self._left = 0
        self._faults: list[Fault] = []
        self._held: list[Held] = []
        self._routes: list[Route] = []
        self._word: Word | None = None
        self._pushed: list[Word] = []  # what is read back of a GPU's memory lands here

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
            async with asyncio.timeout(max(0.0, transfer.left())):
                routes = await self._engine.connect(transfer, transfer.handle.service.verbs.call_one)
        except TimeoutError:
            transfer.finish(transfer.timed_out())
        except UnreachableError as exc:
            self._give_up(str(exc))
        except BaseException as exc:
            transfer.finish(actor.reason(exc, transfer.handle))
        else:
            copying.later(lambda: self._launch(routes))

    def _give_up(self, why: str) -> None:
        avoid(self.transfer.handle, why)
        self._context.copy().run(elsewhere, self.transfer, why)

    def _launch(self, routes: list[Route]) -> None:
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
            self._give_up(f"{transfer.memory!r} cannot be registered (locked memory may be limited: ulimit -l): {exc}")
        except Exception as exc:
            self._let_go()
            transfer.finish(exc)
        else:
            self._post(parts)

    def _parts(self, routes: list[Route]) -> list[tuple[Link, Part]]:
        transfer, handle = self.transfer, self.transfer.handle
        ways = stripes(transfer.size, len(routes), settings.get("rdma_min_stripe_size_kb") * _KIB)
        held: dict[str, Held] = {}
        parts = []
        for (at, count), route in zip(ways, routes, strict=False):
            if route.here not in held:
                held[route.here] = self._engine.memory.hold(route.here, transfer.memory, not transfer.write)
                self._held.append(held[route.here])
            segment = Segment(transfer.memory.address + at, handle.address + transfer.offset + at, count)
            limits = self._engine.devices.device(route.here).limits
            requests = split([segment], limits.message, limits.pieces)
            parts.append((route.link, Part(self, requests, transfer.write, held[route.here].key, route.key.memory)))
        return parts

    def _post(self, parts: list[tuple[Link, Part]]) -> None:
        self._left = len(parts)
        for link, part in parts:
            try:
                link.begin(part)
            except LinkGoneError:
                part.ended(Fault.FLUSHED)

    def _spin(self, routes: list[Route]) -> None:
        """Looks for completions without a pause for a moment: no other thread has to wake up for a small transfer."""
        end = perf_counter() + SPIN
        while not self._over and perf_counter() < end:
            for route in routes:
                route.link.look()

    def ended(self, fault: Fault | None) -> None:
        """A part has."""
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
            transfer.finish(None if true else dropped(transfer.handle))
        elif Fault.LATE in faults:
            transfer.finish(transfer.timed_out())
        else:
            self._failed(next((fault for fault in faults if fault is not Fault.FLUSHED), Fault.FLUSHED))

    def _look_at_word(self) -> None:
        route = self._routes[0]
        try:
            word = self._word = self._engine.word(route.here)
        except OSError:
            self._faults.append(Fault.LOCAL)
            self._left = 0
            self._let_go()
            self._failed(Fault.LOCAL)
            return
        request = Request(self.transfer.handle.word, ((word.address, WORD.size),))
        self._post([(route.link, Part(self, [request], False, word.key, route.key.word))])

    def _push(self) -> None:
        """Reads back what was written to a GPU, over each queue pair that wrote: see above."""
        transfer = self.transfer
        remote, count = transfer.handle.address + transfer.offset, min(WORD.size, transfer.size)
        parts = []
        try:
            for route in self._routes:
                self._pushed.append(self._engine.word(route.here))
                word = self._pushed[-1]
                request = Request(remote, ((word.address, count),))
                parts.append((route.link, Part(self, [request], False, word.key, route.key.memory)))
        except OSError:
            self._faults.append(Fault.LOCAL)
            self._all_ended()
            return
        self._post(parts)

    def _failed(self, fault: Fault) -> None:
        """What was done is done over: it does no harm, for both sides leave the bytes alone meanwhile."""
        transfer = self.transfer
        if fault is Fault.FLUSHED:
            self._disturbed += 1
        else:
            self._attempts += 1
        self._engine.forget(transfer.handle)
        if transfer.late():
            transfer.finish(transfer.timed_out())
        elif self._attempts < ATTEMPTS and self._disturbed < DISTURBED:
            self._context.copy().run(self._prepare)
        else:
            if fault is Fault.UNREACHABLE:
                avoid(transfer.handle, fault.value)
            more = "; part of the write may have arrived" if transfer.write else ""
            transfer.finish(
                RDMAError(f"buffer {transfer.handle.number} of {transfer.handle.owner}: {fault.value}{more}")
            )

    def _let_go(self) -> None:
        held, self._held = self._held, []
        for one in held:
            one.release()


class Part:
    """What one link does of a transfer."""

    def __init__(self, errand: Errand, requests: list[Request], write: bool, key: int, remote_key: int) -> None:
        self._errand = errand
        self.requests = requests
        self.write = write
        self.key = key
        self.remote_key = remote_key
        self.deadline = errand.transfer.deadline

    def ended(self, fault: Fault | None) -> None:
        self._errand.ended(fault)


class Word:
    """Eight bytes that a device may write to."""

    def __init__(self, words: Words, address: int) -> None:
        self._words = words
        self.address = address
        self.key = words.registration.key

    def value(self) -> int:
        return int(WORD.unpack_from(self._words.page, self.address - self._words.address)[0])

    def close(self) -> None:
        self._words.free.append(self.address)


class Words:
    """A page of them, registered for good."""

    def __init__(self, page: mmap.mmap, address: int, registration: Registration) -> None:
        self.page = page
        self.address = address
        self.registration = registration
        self.free = list(range(address, address + len(page), WORD.size))


# --- connections


Ask = Callable[[Any], Awaitable[Any]]


class Known(NamedTuple):
    """Keys, and when they were asked for."""

    asked: int
    lent: Lent


class Engine:
    """This process's side of all transfers. Any thread; `connect` on one event loop."""

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        self.memory = LocalMemory(devices.register)
        self._me = os.urandom(16)
        self._watch = Watch()
        self._lock = threading.Lock()
        self._links: OrderedDict[tuple[Owner, str, str], Link] = OrderedDict()
        self._known: OrderedDict[tuple[Owner, int, bool], Known] = OrderedDict()
        self._clock = itertools.count()
        self._words: dict[str, list[Words]] = {}
        self._turns: weakref.WeakValueDictionary[tuple[Owner, str, str], asyncio.Lock] = weakref.WeakValueDictionary()

    def routes(self, transfer: Transfer) -> list[Route] | None:
        """All that the transfer is to be spread over; None when the owner has to be asked first."""
        handle = transfer.handle
        with self._lock:
            known = self._known.get((handle.owner, handle.token, transfer.write))
        if known is None:
            return None
        try:
            wanted = self._pairs(transfer, known.lent)
        except UnreachableError:
            return None
        routes = []
        with self._lock:
            for here, key in wanted:
                link = self._links.get((handle.owner, here, key.nic))
                if link is None or link.closed:
                    return None
                self._links.move_to_end((handle.owner, here, key.nic))
                routes.append(Route(here, link, key))
        return routes if self._safe(transfer, known, routes) else None

    async def connect(self, transfer: Transfer, ask: Ask) -> list[Route]:
        """The same, whatever it takes. UnreachableError, and what the owner raises."""
        handle, old = transfer.handle, None
        while True:
            known = await self._lend(handle, transfer.write, ask, old)
            routes = []
            for here, key in self._pairs(transfer, known.lent):
                routes.append(Route(here, await self._link(handle.owner, here, key.nic, ask), key))
            if self._safe(transfer, known, routes):
                return routes
            old = known

    def _safe(self, transfer: Transfer, known: Known, routes: list[Route]) -> bool:
        """A drop closes the queue pairs that writers have at the time: over one that was made later, a key that was lent
        before would reach whatever has that key now."""
        return not transfer.write or all(route.link.made < known.asked for route in routes)

    def forget(self, handle: Handle) -> None:
        """Keys of that owner's buffers may have changed, and queue pairs it had may be closed."""
        with self._lock:
            for name in [name for name in self._known if name[0] == handle.owner]:
                del self._known[name]

    def word(self, nic: str) -> Word:
        """OSError when there is no room for more."""
        with self._lock:
            pages = self._words.setdefault(nic, [])
            page = next((page for page in pages if page.free), None)
            if page is None:
                page = self._more_words(nic)
                pages.append(page)
            return Word(page, page.free.pop())

    def close(self) -> None:
        """Of tests."""
        self._watch.close()
        self.memory.close()
        for pages in self._words.values():
            for page in pages:
                memories.close(page.registration)

    async def _lend(self, handle: Handle, write: bool, ask: Ask, old: Known | None) -> Known:
        """What is known, other than `old`, or what the owner says now."""
        name = (handle.owner, handle.token, write)
        with self._lock:
            known = self._known.get(name)
        if known is not None and known is not old:
            return known
        asked = next(self._clock)
        answer = await ask(Lend(self._me, handle.number, handle.token, write))
        if isinstance(answer, str):
            raise UnreachableError(f"the owner says: {answer[:500]}")
        try:
            lent = checked(answer)
        except ValueError as exc:
            raise UnreachableError(f"the owner sent an invalid answer: {exc}") from None
        with self._lock:
            known = self._known[name] = Known(asked, lent)
            if len(self._known) > KNOWN:
                self._known.popitem(last=False)
            links = [link for (owner, _, _), link in self._links.items() if owner == handle.owner and link.made < asked]
        for link in links:
            if link.peer not in lent.open:  # the owner has closed its side
                link.close()
        return known

    def _pairs(self, transfer: Transfer, lent: Lent) -> list[tuple[str, Key]]:
        """As many as the transfer is to be spread over. Who pairs with whom is always the same; who comes first is not."""
        keys = {key.nic: key for key in lent.keys}
        nics = self.devices.nics
        try:
            may = affinity(settings.get("rdma_peer_device_affinity"))
            near = self.devices.near(transfer.memory)
        except ChoiceError as exc:
            raise UnreachableError(str(exc)) from None
        found = pairs(
            sorted(near),
            sorted(keys),
            lambda here, there: may(here, there) and nics[here].ethernet == keys[there].ethernet,
        )
        if not found:
            raise UnreachableError(
                f"no device here ({', '.join(near)}) may pair with one there ({', '.join(keys)}): see "
                "rdma_peer_device_affinity; both have to be Ethernet, or both InfiniBand"
            )
        first = next((number for number, (here, _) in enumerate(found) if here == near[0]), 0)
        count = len(stripes(transfer.size, len(found), settings.get("rdma_min_stripe_size_kb") * _KIB))
        return [(here, keys[there]) for here, there in (found[first:] + found[:first])[:count]]

    async def _link(self, owner: Owner, here: str, there: str, ask: Ask) -> Link:
        import asyncio

        name = (owner, here, there)
        async with self._turns.setdefault(name, asyncio.Lock()):
            with self._lock:
                link = self._links.get(name)
            if link is None or link.closed:
                link = await self._meet(here, there, ask)
                self._keep(name, link)
            return link

    async def _meet(self, here: str, there: str, ask: Ask) -> Link:
        """A new queue pair, connected to a new one of the owner's."""
        try:
            device = self.devices.device(here)
            pair = device.pair(device.limits.work, device.limits.pieces)
        except (OSError, ChoiceError) as exc:
            raise UnreachableError(f"{here} makes no queue pair: {exc}") from None
        try:
            pair.to_init(0)
            peer = await self._shake_hands(pair, there, ask)
            pair.to_rtr(peer)
            pair.to_rts(peer)
            return Link(pair, device.limits.work, self._watch, peer.number, next(self._clock))
        except OSError as exc:
            pair.close()
            raise UnreachableError(f"{here} cannot be connected to {there} of the owner: {exc}") from None
        except BaseException:
            pair.close()
            raise

    async def _shake_hands(self, pair: Pair, there: str, ask: Ask) -> End:
        import asyncio

        limit = settings.get("rdma_qp_init_timeout")
        try:
            async with asyncio.timeout(limit):
                answer = await ask(Meet(self._me, there, pair.end()))
        except TimeoutError:
            raise UnreachableError(f"the owner made no queue pair within {limit:g} s (rdma_qp_init_timeout)") from None
        if type(answer) is not End:
            raise UnreachableError(f"the owner says: {str(answer)[:500]}")
        try:
            return answer.check()
        except ValueError as exc:
            raise UnreachableError(f"the owner sent an invalid answer: {exc}") from None

    def _keep(self, name: tuple[Owner, str, str], link: Link) -> None:
        with self._lock:
            self._links[name] = link
            self._links.move_to_end(name)
            over = len(self._links) - LINKS
            idle = [other for other, one in self._links.items() if one.closed or not one.busy][: max(0, over)]
            gone = [self._links.pop(other) for other in idle if other != name]
        for one in gone:
            one.close()

    def _more_words(self, nic: str) -> Words:
        import ctypes

        page = mmap.mmap(-1, mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        return Words(page, address, self.devices.device(nic).register(address, len(page), LOCAL_WRITE))


_made: OncePerProcess[Engine] = OncePerProcess()


def engine() -> Engine:
    """This process's. NoDevicesError."""
    has = devices()
    return _made.get(lambda: Engine(has))
