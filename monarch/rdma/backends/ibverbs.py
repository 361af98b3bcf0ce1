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
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch._errors import RDMAError
from monarch.config import settings
from monarch.rdma import copying, manager
from monarch.rdma.backends import actor, plain, tcp
from monarch.rdma.backends import ibverbs_memory as memories
from monarch.rdma.backends.detour import Avoided, first_usable, reroute
from monarch.rdma.backends.ibverbs_binding import LOCAL_WRITE, Pair, Registration
from monarch.rdma.backends.ibverbs_devices import Devices, NoDevicesError, devices
from monarch.rdma.backends.ibverbs_gids import ChoiceError, Gid
from monarch.rdma.backends.ibverbs_link import Link, LinkGoneError, Watch
from monarch.rdma.backends.ibverbs_memory import Held, LocalMemory
from monarch.rdma.backends.ibverbs_messages import Check, End, Key, Lend, Lent, Meet, Opened, checked
from monarch.rdma.backends.ibverbs_pairs import Pairing, Port, Stripe, affinity, pairings, stripes, why_none
from monarch.rdma.backends.ibverbs_path import path_of
from monarch.rdma.backends.ibverbs_queue import Fault, Request, split
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
PROBE = 5.0  # seconds in which a new connection has to carry something; a device alone would try for minutes
CHECK = 5.0  # seconds in which an owner says whether it still has a queue pair; then it is asked again later
PLANS = 64  # of one buffer: ways to reach it from different memory and under different settings
SAID = 1000  # characters of an owner's reason
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
        return unreachable.why(memory_at(handle)) or plain.obstacle(handle)

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
    """A pair of devices that is connected, the owner's keys for its side, and what it carries of the transfer."""

    here: str
    link: Link
    key: Key
    stripe: Stripe


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
            encrypted = plain.encrypted(transfer.handle)
            if encrypted and (why := plain.forbidden()):
                raise UnreachableError(why)
            async with asyncio.timeout(max(0.0, transfer.left())):
                routes = await self._engine.connect(transfer, transfer.handle.service.verbs.call_one, encrypted)
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
            self._give_up(f"{transfer.memory!r} cannot be registered: {exc}")
        except Exception as exc:
            self._let_go()
            transfer.finish(exc)
        else:
            self._post(parts)

    def _parts(self, routes: list[Route]) -> list[tuple[Link, Part]]:
        transfer, handle = self.transfer, self.transfer.handle
        held: dict[str, Held] = {}
        parts = []
        for route in routes:
            if route.here not in held:
                held[route.here] = self._engine.memory.hold(route.here, transfer.memory, not transfer.write)
                self._held.append(held[route.here])
            _, at, size = route.stripe
            local, remote = transfer.memory.address + at, handle.address + transfer.offset + at
            requests = split(local, remote, size, self._engine.devices.device(route.here).limits.message)
            part = Part(self, route.link, requests, transfer.write, held[route.here].key, route.key.memory)
            parts.append((route.link, part))
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
        request = Request(word.address, self.transfer.handle.word, WORD.size)
        self._post([(route.link, Part(self, route.link, [request], False, word.key, route.key.word))])

    def quiet(self, link: Link) -> None:
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
                request = Request(word.address, remote, count)
                parts.append((route.link, Part(self, route.link, [request], False, word.key, route.key.memory)))
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

    def __init__(
        self, errand: Errand, link: Link, requests: list[Request], write: bool, key: int, remote_key: int
    ) -> None:
        self._errand = errand
        self._link = link
        self.requests = requests
        self.write = write
        self.key = key
        self.remote_key = remote_key
        self.deadline = errand.transfer.deadline

    def ended(self, fault: Fault | None) -> None:
        self._errand.ended(fault)

    def quiet(self) -> None:
        self._errand.quiet(self._link)


class Probe:
    """The first request over a link; on an event loop's thread."""

    write = False

    def __init__(self, request: Request, key: int, remote_key: int) -> None:
        import asyncio

        self.requests = [request]
        self.key = key
        self.remote_key = remote_key
        self.deadline = monotonic() + PROBE
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[Fault | None] = self._loop.create_future()

    def ended(self, fault: Fault | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._tell, fault)
        except RuntimeError:  # the loop is closed: this process is ending
            pass

    def _tell(self, fault: Fault | None) -> None:
        if not self.over.done():
            self.over.set_result(fault)

    def quiet(self) -> None:
        """Its deadline comes soon."""


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
    """Keys, when they were asked for, and by which of them memory here is served: see `Engine._plan`."""

    asked: int
    lent: Lent
    plans: dict[tuple[int, str], tuple[tuple[Port, ...], list[Pairing]]]


class Way(NamedTuple):
    """A pairing, and what it carries of a transfer. `key` is None where the owner has not lent it yet."""

    pairing: Pairing
    stripe: Stripe
    key: Key | None


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
            wanted = self._ways(transfer, known)
        except UnreachableError:
            return None
        routes = []
        with self._lock:
            for pairing, stripe, key in wanted:
                name = (handle.owner, pairing.here, pairing.there)
                link = self._links.get(name)
                if link is None or link.closed or key is None:
                    return None
                self._links.move_to_end(name)
                routes.append(Route(pairing.here, link, key, stripe))
        return routes if self._safe(transfer, known, routes) else None

    async def connect(self, transfer: Transfer, ask: Ask, encrypted: bool = False) -> list[Route]:
        """The same, whatever it takes. UnreachableError, and what the owner raises."""
        handle, old = transfer.handle, None
        wanted: tuple[str, ...] = ()
        while True:
            request = Lend(self._me, handle.number, handle.token, transfer.write, encrypted, wanted)
            known = await self._lend(handle, request, ask, old)
            ways = self._ways(transfer, known)
            missing = tuple(sorted({way.pairing.there for way in ways if way.key is None}))
            if missing and missing == wanted:
                raise UnreachableError(f"the owner cannot register the buffer with {', '.join(missing)}")
            old, wanted = known, missing
            if missing:
                continue
            routes = []
            for pairing, stripe, key in ways:
                assert key is not None
                link = await self._link(handle, pairing, key, ask)
                routes.append(Route(pairing.here, link, key, stripe))
            if self._safe(transfer, known, routes):
                return routes

    async def check(self, handle: Handle, link: Link) -> None:
        """Closes a link whose other end the owner has not got any more, or whose owner has ended: those who use it then ask
        for new keys, and hear what has become of it. A device finds out only when it has tried again for long."""
        import asyncio

        try:
            async with asyncio.timeout(CHECK):
                answer = await handle.service.verbs.call_one(Check(self._me))
        except TimeoutError:
            return  # its process is stopped, or its host slow; the device may be well
        except Exception as exc:
            logging.getLogger("monarch").debug("RDMA: %s does not answer: %r", handle.owner, exc)
            link.close()
            return
        if type(answer) is not Opened or link.peer not in answer.open:
            link.close()

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

    async def _lend(self, handle: Handle, request: Lend, ask: Ask, old: Known | None) -> Known:
        """What is known, other than `old`, or what the owner says now."""
        name = (handle.owner, handle.token, request.write)
        with self._lock:
            known = self._known.get(name)
        if known is not None and known is not old:
            return known
        asked = next(self._clock)
        answer = await ask(request)
        if isinstance(answer, str):
            raise UnreachableError(f"the owner says: {answer[:SAID]}")
        try:
            lent = checked(answer)
        except ValueError as exc:
            raise UnreachableError(f"the owner sent an invalid answer: {exc}") from None
        with self._lock:
            known = self._known[name] = Known(asked, lent, {})
            if len(self._known) > KNOWN:
                self._known.popitem(last=False)
            links = [link for (owner, _, _), link in self._links.items() if owner == handle.owner and link.made < asked]
        for link in links:
            if link.peer not in lent.open:  # the owner has closed its side
                link.close()
        return known

    def _ways(self, transfer: Transfer, known: Known) -> list[Way]:
        """As many as the transfer is to be spread over. Who pairs with whom is always the same; who comes first is not."""
        try:
            near = self.devices.near(transfer.memory)
            found = self._plan(near, known)
        except ChoiceError as exc:
            raise UnreachableError(str(exc)) from None
        first = next((number for number, pairing in enumerate(found) if pairing.here == near[0]), 0)
        turned = found[first:] + found[:first]
        least = settings.get("rdma_min_stripe_size_kb") * _KIB
        keys = {key.nic: key for key in known.lent.keys}
        return [
            Way(turned[stripe.way], stripe, keys.get(turned[stripe.way].there))
            for stripe in stripes(transfer.size, [pairing.rate for pairing in turned], least)
        ]

    def _plan(self, near: list[str], known: Known) -> list[Pairing]:
        """Pairs of devices for memory that these are near to: one at least. UnreachableError, ChoiceError."""
        text = settings.get("rdma_peer_device_affinity")
        here = self.devices.ports(near)
        name = (id(here), text)
        _, found = known.plans.get(name, (here, None))
        if found is None:
            allowed = affinity(text)
            found = pairings(here, known.lent.ports, allowed)
            if not found:
                raise UnreachableError(why_none(here, known.lent.ports, allowed))
            if len(known.plans) >= PLANS:
                known.plans.clear()
            known.plans[name] = here, found  # which keeps `here`, and so its id
        return found

    async def _link(self, handle: Handle, pairing: Pairing, key: Key, ask: Ask) -> Link:
        import asyncio

        name = (handle.owner, pairing.here, pairing.there)
        async with self._turns.setdefault(name, asyncio.Lock()):
            with self._lock:
                link = self._links.get(name)
            if link is None or link.closed:
                link = await self._meet(pairing, ask)
                try:
                    await self._probe(handle, link, pairing, key)
                except BaseException:
                    link.close()
                    raise
                self._keep(name, link)
            return link

    async def _probe(self, handle: Handle, link: Link, pairing: Pairing, key: Key) -> None:
        """Reads the buffer's control word over a new link: whether packets pass at all between the two. UnreachableError."""
        try:
            word = self.word(pairing.here)
        except (OSError, ChoiceError) as exc:
            raise UnreachableError(str(exc)) from None
        probe = Probe(Request(word.address, handle.word, WORD.size), word.key, key.word)
        try:
            link.begin(probe)
        except LinkGoneError:
            word.close()
            return
        fault = await probe.over
        word.close()
        if fault in (Fault.LATE, Fault.UNREACHABLE):
            raise UnreachableError(
                f"nothing passes between {pairing.here} here ({pairing.gid}) and {pairing.there} of the owner "
                f"({pairing.peer}) since they were connected: see rdma_peer_device_affinity (rails), rdma_ib_gid_index "
                "(VLANs)"
            )
        # Any other fault is the transfer's to find out about: the link is closed.

    async def _meet(self, pairing: Pairing, ask: Ask) -> Link:
        """A new queue pair, connected to a new one of the owner's."""
        here, there = pairing.here, pairing.there
        try:
            device = self.devices.up(here)
            pair = device.pair(device.limits.work, path_of(pairing.gid))
        except (OSError, ChoiceError) as exc:
            raise UnreachableError(f"{here} makes no queue pair: {exc}") from None
        try:
            pair.to_init(0)
            peer = await self._shake_hands(pair, there, pairing.peer, ask)
            pair.to_rtr(peer)
            pair.to_rts(peer)
            return Link(pair, device.limits.work, self._watch, peer.number, next(self._clock))
        except OSError as exc:
            pair.close()
            raise UnreachableError(f"{here} cannot be connected to {there} of the owner: {exc}") from None
        except BaseException:
            pair.close()
            raise

    async def _shake_hands(self, pair: Pair, there: str, peer: Gid, ask: Ask) -> End:
        import asyncio

        limit = settings.get("rdma_qp_init_timeout")
        try:
            async with asyncio.timeout(limit):
                answer = await ask(Meet(self._me, there, pair.end(), peer.slot))
        except TimeoutError:
            raise UnreachableError(f"the owner made no queue pair within {limit:g} s (rdma_qp_init_timeout)") from None
        if type(answer) is not End:
            raise UnreachableError(f"the owner says: {str(answer)[:SAID]}")
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
        return Words(page, address, self.devices.register_words(nic, address, len(page), LOCAL_WRITE))


_made: OncePerProcess[Engine] = OncePerProcess()


def engine() -> Engine:
    """This process's. NoDevicesError."""
    has = devices()
    return _made.get(lambda: Engine(has))
