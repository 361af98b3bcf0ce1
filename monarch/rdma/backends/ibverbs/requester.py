"""This process's side of all transfers by RDMA devices: what it knows of owners' buffers, and the queue pairs it has to them.

Who asks decides for both ends: an owner tells of all its devices and lends a buffer by those near it, here is chosen which
pair (`pairing`), and the owner is asked for what is missing. A new queue pair reads a control word before anything
waits for it: where no packet passes, that is known after PROBE seconds, and the transfer goes another way.
"""

from __future__ import annotations

import itertools
import logging
import mmap
import os
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch._linux.locks import Lock
from monarch.config import settings
from monarch.rdma.backends.ibverbs import registration_cache as memories
from monarch.rdma.backends.ibverbs.binding import LOCAL_WRITE, QueuePair, Registration, packet_path
from monarch.rdma.backends.ibverbs.control_messages import (
    ConnectRequest,
    KeyReply,
    KeyRequest,
    OpenPairsReply,
    OpenPairsRequest,
    QueuePairEnd,
    RemoteKeys,
    checked,
)
from monarch.rdma.backends.ibverbs.devices import RDMADevices, devices
from monarch.rdma.backends.ibverbs.pairing import (
    ChoiceError,
    Gid,
    NicPort,
    Pairing,
    Stripe,
    affinity,
    pairings,
    stripes,
    why_none,
)
from monarch.rdma.backends.ibverbs.queue_pair_link import CompletionWatcher, LinkGoneError, QueuePairLink
from monarch.rdma.backends.ibverbs.registration_cache import RegistrationCache
from monarch.rdma.backends.ibverbs.send_queue import TransferFault, WorkRequest
from monarch.rdma.buffer_handle import BufferHandle, Owner
from monarch.rdma.once import OncePerProcess
from monarch.rdma.registry import WORD
from monarch.rdma.transfer import Transfer

if TYPE_CHECKING:
    import asyncio

LINKS = 256  # connected queue pairs; the one used longest ago that is idle is closed
KNOWN = 4096  # buffers whose keys are kept; the one met first is forgotten
PROBE = 5.0  # seconds in which a new connection has to carry something; a device alone would try for minutes
CHECK = 5.0  # seconds in which an owner says whether it still has a queue pair; then it is asked again later
PLANS = 64  # of one buffer: ways to reach it from different memory and under different settings
SAID = 1000  # characters of an owner's reason
_KIB = 1 << 10


class UnreachableError(Exception):
    """The owner cannot be reached by devices; the text says why."""


class ConnectedStripe(NamedTuple):
    """A pair of devices that is connected, the owner's keys for its side, and what it carries of the transfer."""

    here: str
    link: QueuePairLink
    key: RemoteKeys
    stripe: Stripe


class ProbeJob:
    """The first request over a link; on an event loop's thread."""

    write = False

    def __init__(self, request: WorkRequest, key: int, remote_key: int) -> None:
        import asyncio

        self.requests = [request]
        self.key = key
        self.remote_key = remote_key
        self.deadline = monotonic() + PROBE
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[TransferFault | None] = self._loop.create_future()

    def ended(self, fault: TransferFault | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._tell, fault)
        except RuntimeError:  # the loop is closed: this process is ending
            pass

    def _tell(self, fault: TransferFault | None) -> None:
        if not self.over.done():
            self.over.set_result(fault)

    def quiet(self) -> None:
        """Does nothing: a probe's deadline comes soon."""


class ControlWord:
    """Eight bytes that a device may write to."""

    def __init__(self, words: ControlWordPage, address: int) -> None:
        self._words = words
        self.address = address
        self.key = words.registration.key

    def value(self) -> int:
        return int(WORD.unpack_from(self._words.page, self.address - self._words.address)[0])

    def close(self) -> None:
        self._words.free.append(self.address)


class ControlWordPage:
    """A page of them, registered for good."""

    def __init__(self, page: mmap.mmap, address: int, registration: Registration) -> None:
        self.page = page
        self.address = address
        self.registration = registration
        self.free = list(range(address, address + len(page), WORD.size))


Ask = Callable[[Any], Awaitable[Any]]


class KnownKeys(NamedTuple):
    """Keys, when they were asked for, and by which of them memory here is served: see `Requester._plan`."""

    asked: int
    lent: KeyReply
    plans: dict[tuple[int, str], tuple[tuple[NicPort, ...], list[Pairing]]]


class PlannedStripe(NamedTuple):
    """A pairing, and what it carries of a transfer. `key` is None where the owner has not lent it yet."""

    pairing: Pairing
    stripe: Stripe
    key: RemoteKeys | None


class Requester:
    """This process's side of all transfers. Any thread; `connect` on one event loop."""

    def __init__(self, devices: RDMADevices) -> None:
        self.devices = devices
        self.memory = RegistrationCache(devices.register)
        self._me = os.urandom(16)
        self._watch = CompletionWatcher()
        self._lock = Lock()
        self._links: OrderedDict[tuple[Owner, str, str], QueuePairLink] = OrderedDict()
        self._known: OrderedDict[tuple[Owner, int, bool], KnownKeys] = OrderedDict()
        self._clock = itertools.count()
        self._words: dict[str, list[ControlWordPage]] = {}
        self._turns: weakref.WeakValueDictionary[tuple[Owner, str, str], asyncio.Lock] = weakref.WeakValueDictionary()

    def routes(self, transfer: Transfer) -> list[ConnectedStripe] | None:
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
                routes.append(ConnectedStripe(pairing.here, link, key, stripe))
        return routes if self._safe(transfer, known, routes) else None

    async def connect(self, transfer: Transfer, ask: Ask, encrypted: bool = False) -> list[ConnectedStripe]:
        """The same, whatever it takes. UnreachableError, and what the owner raises."""
        handle, old = transfer.handle, None
        wanted: tuple[str, ...] = ()
        while True:
            request = KeyRequest(self._me, handle.number, handle.token, transfer.write, encrypted, wanted)
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
                routes.append(ConnectedStripe(pairing.here, link, key, stripe))
            if self._safe(transfer, known, routes):
                return routes

    async def check(self, handle: BufferHandle, link: QueuePairLink) -> None:
        """Closes a link whose other end the owner has not got any more, or whose owner has ended: those who use it then ask
        for new keys, and hear what has become of it. A device finds out only when it has tried again for long."""
        import asyncio

        try:
            async with asyncio.timeout(CHECK):
                answer = await handle.service.verbs.call_one(OpenPairsRequest(self._me))
        except TimeoutError:
            return  # its process is stopped, or its host slow; the device may be well
        except Exception as exc:
            logging.getLogger("monarch").debug("RDMA: %s does not answer: %r", handle.owner, exc)
            link.close()
            return
        if type(answer) is not OpenPairsReply or link.peer not in answer.open:
            link.close()

    def _safe(self, transfer: Transfer, known: KnownKeys, routes: list[ConnectedStripe]) -> bool:
        """A drop closes the queue pairs that writers have at the time: over one that was made later, a key that was lent
        before would reach whatever has that key now."""
        return not transfer.write or all(route.link.made < known.asked for route in routes)

    def forget(self, handle: BufferHandle) -> None:
        """Keys of that owner's buffers may have changed, and queue pairs it had may be closed."""
        with self._lock:
            for name in [name for name in self._known if name[0] == handle.owner]:
                del self._known[name]

    def word(self, nic: str) -> ControlWord:
        """OSError when there is no room for more."""
        with self._lock:
            pages = self._words.setdefault(nic, [])
            page = next((page for page in pages if page.free), None)
            if page is None:
                page = self._more_words(nic)
                pages.append(page)
            return ControlWord(page, page.free.pop())

    def close(self) -> None:
        """Closes all links and gives all memory back. For tests."""
        self._watch.close()
        self.memory.close()
        for pages in self._words.values():
            for page in pages:
                memories.close(page.registration)

    async def _lend(self, handle: BufferHandle, request: KeyRequest, ask: Ask, old: KnownKeys | None) -> KnownKeys:
        """Returns what is known, other than `old`, or what the owner says now."""
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
            known = self._known[name] = KnownKeys(asked, lent, {})
            if len(self._known) > KNOWN:
                self._known.popitem(last=False)
            links = [link for (owner, _, _), link in self._links.items() if owner == handle.owner and link.made < asked]
        for link in links:
            if link.peer not in lent.open:  # the owner has closed its side
                link.close()
        return known

    def _ways(self, transfer: Transfer, known: KnownKeys) -> list[PlannedStripe]:
        """Returns as many as the transfer is to be spread over. Which devices pair is always the same; which comes
        first is not.
        """
        try:
            near = self.devices.near(transfer.memory)
            found = self._plan(near, known)
        except ChoiceError as exc:
            raise UnreachableError(str(exc)) from None
        first = next((number for number, pairing in enumerate(found) if pairing.here == near[0]), 0)
        turned = found[first:] + found[:first]
        least = settings.rdma_min_stripe_size_kb() * _KIB
        keys = {key.nic: key for key in known.lent.keys}
        return [
            PlannedStripe(turned[stripe.way], stripe, keys.get(turned[stripe.way].there))
            for stripe in stripes(transfer.size, [pairing.rate for pairing in turned], least)
        ]

    def _plan(self, near: list[str], known: KnownKeys) -> list[Pairing]:
        """Pairs of devices for memory that these are near to: one at least. UnreachableError, ChoiceError."""
        text = settings.rdma_peer_device_affinity()
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

    async def _link(self, handle: BufferHandle, pairing: Pairing, key: RemoteKeys, ask: Ask) -> QueuePairLink:
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

    async def _probe(self, handle: BufferHandle, link: QueuePairLink, pairing: Pairing, key: RemoteKeys) -> None:
        """Reads the buffer's control word over a new link: whether packets pass at all between the two. UnreachableError."""
        try:
            word = self.word(pairing.here)
        except (OSError, ChoiceError) as exc:
            raise UnreachableError(str(exc)) from None
        probe = ProbeJob(WorkRequest(word.address, handle.word, WORD.size), word.key, key.word)
        try:
            link.begin(probe)
        except LinkGoneError:
            word.close()
            return
        fault = await probe.over
        word.close()
        if fault in (TransferFault.LATE, TransferFault.UNREACHABLE):
            raise UnreachableError(
                f"nothing passes between {pairing.here} here ({pairing.gid}) and {pairing.there} of the owner "
                f"({pairing.peer}) since they were connected: see rdma_peer_device_affinity (rails), rdma_ib_gid_index "
                "(VLANs)"
            )
        # Any other fault is the transfer's to find out about: the link is closed.

    async def _meet(self, pairing: Pairing, ask: Ask) -> QueuePairLink:
        """A new queue pair, connected to a new one of the owner's."""
        here, there = pairing.here, pairing.there
        try:
            device = self.devices.up(here)
            pair = device.pair(device.limits.work, packet_path(pairing.gid))
        except (OSError, ChoiceError) as exc:
            raise UnreachableError(f"{here} makes no queue pair: {exc}") from None
        try:
            pair.to_init(0)
            peer = await self._shake_hands(pair, there, pairing.peer, ask)
            pair.to_rtr(peer)
            pair.to_rts(peer)
            return QueuePairLink(pair, device.limits.work, self._watch, peer.number, next(self._clock))
        except OSError as exc:
            pair.close()
            raise UnreachableError(f"{here} cannot be connected to {there} of the owner: {exc}") from None
        except BaseException:
            pair.close()
            raise

    async def _shake_hands(self, pair: QueuePair, there: str, peer: Gid, ask: Ask) -> QueuePairEnd:
        import asyncio

        limit = settings.rdma_qp_init_timeout()
        try:
            async with asyncio.timeout(limit):
                answer = await ask(ConnectRequest(self._me, there, pair.end(), peer.slot))
        except TimeoutError:
            raise UnreachableError(f"the owner made no queue pair within {limit:g} s (rdma_qp_init_timeout)") from None
        if type(answer) is not QueuePairEnd:
            raise UnreachableError(f"the owner says: {str(answer)[:SAID]}")
        try:
            return answer.check()
        except ValueError as exc:
            raise UnreachableError(f"the owner sent an invalid answer: {exc}") from None

    def _keep(self, name: tuple[Owner, str, str], link: QueuePairLink) -> None:
        with self._lock:
            self._links[name] = link
            self._links.move_to_end(name)
            over = len(self._links) - LINKS
            idle = [other for other, one in self._links.items() if one.closed or not one.busy][: max(0, over)]
            gone = [self._links.pop(other) for other in idle if other != name]
        for one in gone:
            one.close()

    def _more_words(self, nic: str) -> ControlWordPage:
        import ctypes

        page = mmap.mmap(-1, mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        return ControlWordPage(page, address, self.devices.register_words(nic, address, len(page), LOCAL_WRITE))


_made: OncePerProcess[Requester] = OncePerProcess()


def engine() -> Requester:
    """Returns this process's Requester. NoDevicesError."""
    has = devices()
    return _made.get(lambda: Requester(has))
