"""The owner's side: keys to its buffers, and queue pairs at which its devices serve others. Its Python code takes no further
part.

A key is for one buffer and no more, so that a drop takes exactly it back; readers get one that writes nothing. A reader looks
at the control word after the data, by the same device, so it needs nobody to tell it of a drop. A writer cannot look
afterwards, and a device may give a key that was taken back to another buffer at the same address. So once a buffer was lent
to be written to, its drop closes the queue pairs of those who had it; what they have under way reaches nothing any more, and
for what else they do they connect anew.

A process that ends without a word leaves its queue pairs here until MET others have come; they hold no keys of their own.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from monarch._errors import RDMAReadOnlyError
from monarch._linux.locks import Lock
from monarch.rdma.backends.ibverbs import pairing, plaintext
from monarch.rdma.backends.ibverbs.binding import (
    LOCAL_WRITE,
    REMOTE_READ,
    REMOTE_WRITE,
    QueuePair,
    Registration,
    packet_path,
)
from monarch.rdma.backends.ibverbs.control_messages import (
    ConnectRequest,
    KeyReply,
    KeyRequest,
    OpenPairsReply,
    OpenPairsRequest,
    QueuePairEnd,
    RemoteKeys,
)
from monarch.rdma.backends.ibverbs.devices import NoDevicesError, RDMADevices, devices
from monarch.rdma.backends.ibverbs.pairing import ChoiceError
from monarch.rdma.backends.ibverbs.registration_cache import close
from monarch.rdma.once import OncePerProcess
from monarch.rdma.registry import WORD, RegisteredBuffer, Registry, registry

MET = 4096  # queue pairs for others; the one made first is closed when another comes
NAME = "ibverbs"


class LentKeys:
    """The keys by which devices reach a buffer. Changed only by the Responder that made it."""

    def __init__(self, owner: Responder) -> None:
        self._owner = owner
        self.read: dict[str, tuple[Registration, Registration]] = {}
        self.write: dict[str, tuple[Registration, Registration]] = {}
        self.writers: set[bytes] = set()

    def close(self) -> None:
        """Once it has returned, nobody reads or writes the buffer by a device."""
        for keys in (self.read, self.write):
            for memory, word in keys.values():
                close(memory)
                close(word)
        for reader in self.writers:
            self._owner.part(reader)


class Responder:
    """The owner's side of all transfers by RDMA devices. Any thread."""

    def __init__(self, devices: RDMADevices) -> None:
        self._devices = devices
        self._lock = Lock()
        self._met: OrderedDict[tuple[bytes, str, str], QueuePair] = OrderedDict()  # reader, device here, device there

    def lend(self, region: RegisteredBuffer, reader: bytes, write: bool, nics: tuple[str, ...] = ()) -> KeyReply:
        """Returns how that process reaches the buffer, by the devices near it and by `nics`. OSError, ChoiceError,
        RDMAReadOnlyError.
        """
        if write and not region.memory.writable:
            raise RDMAReadOnlyError(f"buffer {region.number} is read-only")
        near = self._devices.near(region.memory)
        ports = self._devices.ports(near)
        with self._lock:
            lent: LentKeys = region.lent.setdefault(NAME, LentKeys(self))
            keys = lent.write if write else lent.read
            if not keys:
                self._register(region, keys, write, near)
            more = [nic for nic in nics if nic not in keys]
            if more:
                self._register(region, keys, write, more)
            if write:
                lent.writers.add(reader)
                if len(lent.writers) > MET:  # those without a queue pair cannot write
                    lent.writers = {reader, *(other for other, _, _ in self._met)} & lent.writers
            shown = [RemoteKeys(nic, memory.remote_key, word.remote_key) for nic, (memory, word) in keys.items()]
            known = self._open_to(reader)
            # A near one that could not register is not to be asked for again.
            offered = tuple(port for port in ports if not port.near or port.nic in keys)
        return KeyReply(tuple(shown), known, offered)

    def open_to(self, reader: bytes) -> tuple[int, ...]:
        """The numbers of the queue pairs that serve that process."""
        with self._lock:
            return self._open_to(reader)

    def _open_to(self, reader: bytes) -> tuple[int, ...]:
        return tuple(pair.end().number for (other, _, _), pair in self._met.items() if other == reader)

    def connect(self, request: ConnectRequest) -> QueuePairEnd:
        """A queue pair that serves that one, at the device that was named. OSError, ChoiceError."""
        device = self._devices.up(request.nic)
        nic = self._devices.nics[request.nic]
        (gid,) = pairing.offered(request.nic, nic.gids, nic.ethernet, request.slot)
        pair = device.pair(1, packet_path(gid))
        try:
            pair.to_init(REMOTE_READ | REMOTE_WRITE)
            pair.to_rtr(request.end)  # it asks for nothing itself, so it need not get further
        except BaseException:
            pair.close()
            raise
        with self._lock:
            name = (request.reader, request.nic, request.end.nic)
            gone = [self._met.pop(name, None)]
            self._met[name] = pair
            if len(self._met) > MET:
                gone.append(self._met.popitem(last=False)[1])
        for other in gone:
            _close(other)
        return pair.end()

    def part(self, reader: bytes) -> None:
        with self._lock:
            gone = [self._met.pop(name) for name in list(self._met) if name[0] == reader]
        for pair in gone:
            _close(pair)

    def close(self) -> None:
        """Closes all queue pairs. For tests."""
        for reader, _, _ in list(self._met):
            self.part(reader)

    def __len__(self) -> int:
        return len(self._met)

    def _register(
        self,
        region: RegisteredBuffer,
        keys: dict[str, tuple[Registration, Registration]],
        write: bool,
        nics: Sequence[str],
    ) -> None:
        """Registers it with each of these devices. One that cannot is left out, unless none can. OSError, ChoiceError."""
        memory, refused, done = region.memory, None, False
        access = REMOTE_READ | REMOTE_WRITE | LOCAL_WRITE if write else REMOTE_READ
        for nic in nics:
            try:
                mine = self._devices.register(nic, memory, memory.address, memory.size, access)
                try:
                    its = self._devices.register_words(nic, region.word, WORD.size, REMOTE_READ)
                except BaseException:
                    close(mine)
                    raise
            except OSError as exc:
                refused = exc
                logging.getLogger("monarch").info("RDMA: %s cannot register %r: %s", nic, memory, exc)
            else:
                keys[nic] = (mine, its)
                done = True
        if refused is not None and not done:
            raise refused


def _close(pair: QueuePair | None) -> None:
    if pair is None:
        return
    try:
        pair.close()
    except OSError as exc:
        logging.getLogger("monarch").warning("an RDMA device cannot close a queue pair: %s", exc)


def answer(request: Any, mine: Responder | None = None, known: Registry | None = None) -> Any:
    """Returns what `Manager.verbs` answers: a KeyReply, QueuePairEnd or OpenPairsReply, or why there is none.

    BufferDroppedError, RDMAReadOnlyError; ValueError for what is no request.
    """
    if type(request) not in (KeyRequest, ConnectRequest, OpenPairsRequest):
        raise ValueError("neither KeyRequest, ConnectRequest nor OpenPairsRequest")
    request.check()
    try:
        mine = owner() if mine is None else mine
        if isinstance(request, ConnectRequest):
            return mine.connect(request)
        if isinstance(request, OpenPairsRequest):
            return OpenPairsReply(mine.open_to(request.reader))
        if request.encrypted and (why := plaintext.forbidden()):
            return why
        with (registry() if known is None else known).using(request.number, request.token) as region:
            return mine.lend(region, request.reader, request.write, request.nics)
    except (NoDevicesError, ChoiceError, OSError) as exc:
        return str(exc)


_made: OncePerProcess[Responder] = OncePerProcess()


def owner() -> Responder:
    """Returns this process's Responder. NoDevicesError."""
    has = devices()
    return _made.get(lambda: Responder(has))
