"""This process's NIXL agent: memory it has registered, remote memory it knows, and transfers between the two.

NIXL (https://github.com/ai-dynamo/nixl) moves bytes through UCX, which takes RDMA devices where there are some and else
TCP. It listens at ports of its own, on every network of the machine, and asks nobody there for a secret: a machine that
reaches them may reach registered memory. So none of this happens unless the setting rdma_nixl allows it.

Memory of a GPU is a segment of kind VRAM with the GPU's number in the process that registers it. Its bytes never pass
through the host: kernels that are launched after a transfer into it has ended see them (CUDA's GPUDirect RDMA guide,
"Synchronization and Memory Ordering"), and a write to another process's GPU has ended when a read behind it has: a PCIe read
does not pass writes.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import mmap
import struct
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import monotonic
from typing import Any, NamedTuple

from monarch._devices.memory import interface
from monarch._linux.locks import Lock
from monarch.config import settings
from monarch.rdma.local_memory import LocalMemory
from monarch.rdma.once import OncePerProcess
from monarch.rdma.registry import RegisteredBuffer

MODULES = ("nixl_cu12._api", "nixl_cu13._api", "nixl._api")
CALL_OFF = 5.0
KNOWN = 4096  # remote buffers whose description is kept; the one met first is forgotten

Pause = Callable[[int], None]


class NoAgentError(Exception):
    """This process has no NIXL agent; the text says why."""


class NixlError(Exception):
    """NIXL has failed to move bytes, or to get ready for it."""


class MemoryRefusedError(NixlError):
    """NIXL cannot register memory of this process."""


class NixlSegment(NamedTuple):
    """A kind of memory as NIXL calls it: "DRAM", or "VRAM" with the number of a GPU in the process that registered it."""

    kind: str
    device: int


_Piece = tuple[int, int, NixlSegment]  # address, size, where
_SEGMENT = struct.Struct("!4sI")
GPUS = ("cuda",)  # torch's name for those of both vendors; UCX knows no others


def segment_of(memory: LocalMemory) -> NixlSegment:
    """MemoryRefusedError for a device that NIXL does not know."""
    if memory.device is None:
        return NixlSegment("DRAM", 0)
    if memory.device.type not in GPUS:
        raise MemoryRefusedError(f"NIXL knows no devices of type {memory.device.type}")
    return NixlSegment("VRAM", memory.keep.device.index or 0)


def on(memory: LocalMemory) -> AbstractContextManager[None]:
    """The memory's GPU is this thread's, as UCX needs it to register or copy."""
    return nullcontext() if memory.device is None else interface().on(str(memory.keep.device))


def parsed(shown: bytes) -> tuple[NixlSegment, bytes]:
    """Returns what an owner says of a buffer: where it is, and how NIXL reaches it. NixlError."""
    if len(shown) < _SEGMENT.size:
        raise NixlError("the owner does not say where its memory is")
    kind, device = _SEGMENT.unpack_from(shown)
    if kind not in (b"DRAM", b"VRAM"):
        raise NixlError(f"the owner's memory is of an unknown kind, {kind!r}")
    return NixlSegment(kind.decode(), device), shown[_SEGMENT.size :]


class NixlRegistration:
    """A registered buffer as others reach it."""

    def __init__(self, agent: NixlAgent, memory: LocalMemory) -> None:
        self._agent = agent
        self._memory = memory
        segment = segment_of(memory)
        self._descriptors = agent.register(memory, memory.address, memory.size)
        self.shown = _SEGMENT.pack(segment.kind.encode(), segment.device) + agent.describe(self._descriptors)

    def close(self) -> None:
        self._agent.forget(self._memory, self._descriptors)


class _ScratchPage:
    """A page that is registered for good: what is read there is of no interest."""

    def __init__(self, agent: NixlAgent) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        self.memory = LocalMemory(self.address, len(self._page), True, self._page, "a page of NIXL's")
        agent.register(self.memory, self.address, len(self._page))


class NixlAgent:
    """This process's agent. Any thread."""

    def __init__(self) -> None:
        module = _module()
        try:
            mode = module.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
            config = module.nixl_agent_config(backends=["UCX"], sync_mode=mode)
            self._agent = module.nixl_agent(f"monarch-{uuid.uuid4().hex}", config)
        except Exception as exc:
            raise NoAgentError(f"NIXL cannot start its agent: {exc!r}") from exc
        self._lock = Lock()
        self._known: OrderedDict[int, str] = OrderedDict()  # token of a remote buffer -> name of its agent
        self._stuck: list[Any] = []  # transfers that may still move bytes, and their memory
        self._scratch: _ScratchPage | None = None

    def register(self, memory: LocalMemory, address: int, size: int) -> Any:
        """`size` bytes at `address`, which belong to `memory`. MemoryRefusedError."""
        segment = segment_of(memory)
        try:
            with on(memory):
                return self._agent.register_memory([(address, size, segment.device, "")], segment.kind)
        except Exception as exc:
            more = "" if memory.device is None else f" of {memory.keep.device} (UCX has to be built with CUDA or ROCm)"
            raise MemoryRefusedError(f"NIXL cannot register {size} bytes{more}: {exc!r}") from exc

    def describe(self, descriptors: Any) -> bytes:
        """Returns what another agent needs to reach this memory."""
        shown: bytes = self._agent.get_partial_agent_metadata(descriptors, inc_conn_info=True, backends=["UCX"])
        return shown

    def forget(self, memory: LocalMemory, descriptors: Any) -> None:
        try:
            with on(memory):
                self._agent.deregister_memory(descriptors)
        except Exception as exc:
            logging.getLogger("monarch").warning("NIXL cannot let go of memory: %r", exc)

    def meet(self, token: int, shown: bytes) -> str:
        """The agent that has the buffer with this token."""
        with self._lock:
            name = self._known.get(token)
            if name is None:
                try:
                    loaded = self._agent.add_remote_agent(shown)
                except Exception as exc:
                    raise NixlError(f"NIXL cannot reach the owner: {exc!r}") from exc
                name = loaded.decode() if isinstance(loaded, bytes) else str(loaded)
                self._known[token] = name
                if len(self._known) > KNOWN:
                    self._known.popitem(last=False)
            return name

    def avoid(self, name: str) -> None:
        """Everything known of that agent is forgotten: it has ended, or its memory is another now."""
        with self._lock:
            self._known = OrderedDict((token, other) for token, other in self._known.items() if other != name)
            try:
                self._agent.remove_remote_agent(name)
            except Exception as exc:  # it is not known any more
                logging.getLogger("monarch").debug("NIXL cannot forget %s: %r", name, exc)

    def move(
        self,
        name: str,
        write: bool,
        memory: LocalMemory,
        here: int,
        there: int,
        remote: NixlSegment,
        size: int,
        pause: Pause,
    ) -> None:
        """Between `size` bytes at `here`, which `memory` keeps alive, and registered memory of that agent.

        `pause(n)` is called before the n-th look whether it is done; when it raises, the transfer is called off and that is
        raised once nothing moves any more, or CALL_OFF seconds later; then the memory is kept for good.
        """
        registered = self.register(memory, here, size)
        local = segment_of(memory)
        with on(memory):
            try:
                transfer = self._prepare(write, name, (here, size, local), (there, size, remote))
            except NixlError:
                self.forget(memory, registered)
                raise
            try:
                self._wait(transfer, pause)
            finally:
                if self._over(transfer):
                    self.forget(memory, registered)
                else:
                    self._stuck.append((transfer, registered, memory))
        if write and remote.kind != "DRAM":
            self._read_behind(name, there + size - 1, remote, pause)

    def _read_behind(self, name: str, there: int, remote: NixlSegment, pause: Pause) -> None:
        """A byte of what has been written to a GPU: once it has come, everything is there."""
        with self._lock:
            if self._scratch is None:
                self._scratch = _ScratchPage(self)
        transfer = self._prepare(False, name, (self._scratch.address, 1, NixlSegment("DRAM", 0)), (there, 1, remote))
        try:
            self._wait(transfer, pause)
        finally:
            if not self._over(transfer):
                self._stuck.append((transfer, None, self._scratch))

    def _prepare(self, write: bool, name: str, here: _Piece, there: _Piece) -> Any:
        try:
            local, remote = (
                self._agent.get_xfer_descs([(address, size, segment.device)], segment.kind)
                for address, size, segment in (here, there)
            )
            return self._agent.initialize_xfer("WRITE" if write else "READ", local, remote, name)
        except Exception as exc:
            raise NixlError(f"NIXL cannot prepare the transfer: {exc!r}") from exc

    def _wait(self, transfer: Any, pause: Pause) -> None:
        state, looks = self._state(self._agent.transfer, transfer), 0
        while state == "PROC":
            pause(looks)
            looks += 1
            state = self._state(self._agent.check_xfer_state, transfer)
        if state != "DONE":
            raise NixlError(f"NIXL failed: {state}")

    def _state(self, ask: Callable[[Any], str], transfer: Any) -> str:
        try:
            return ask(transfer)
        except Exception as exc:  # its own kinds of errors have no base of their own
            return repr(exc)

    def _over(self, transfer: Any) -> bool:
        """Calls it off if need be, and waits for that."""
        give_up = monotonic() + CALL_OFF
        while True:
            try:
                transfer.release()
                return True
            except Exception as exc:
                if monotonic() > give_up:
                    logging.getLogger("monarch").warning("NIXL cannot call a transfer off: %r", exc)
                    return False
            _nap.wait(1e-3)


_nap = threading.Event()  # never set
_made: OncePerProcess[NixlAgent | NoAgentError] = OncePerProcess()


def agent() -> NixlAgent:
    """This process's, made by the first call, which takes about half a second. NoAgentError."""
    if not settings.rdma_nixl():
        raise NoAgentError("the setting rdma_nixl is off")
    known = _made.get(_agent)
    if isinstance(known, NoAgentError):
        raise known
    return known


def _agent() -> NixlAgent | NoAgentError:
    try:
        return NixlAgent()
    except NoAgentError as exc:
        return exc


def lend(region: RegisteredBuffer) -> bytes:
    """Returns, in the owner, how others reach the buffer. It stays registered with NIXL until it is dropped. NoAgentError."""
    lender = agent()
    with _made.lock:
        if "nixl" not in region.lent:
            try:
                region.lent["nixl"] = NixlRegistration(lender, region.memory)
            except NixlError as exc:
                raise NoAgentError(str(exc)) from exc
        shown: bytes = region.lent["nixl"].shown
        return shown


def _module() -> Any:
    shows = logging.raiseExceptions
    try:
        for name in MODULES:
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError:
                continue
            except ImportError as exc:
                raise NoAgentError(f"NIXL cannot be loaded: {exc}") from exc
            logging.getLogger("nixl").setLevel(logging.WARNING)
            return module
    finally:
        logging.raiseExceptions = shows
    raise NoAgentError("NIXL is not installed: pip install 'pymonarch[rdma-nixl]'")
