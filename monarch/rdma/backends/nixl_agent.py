"""This process's NIXL agent: memory it has registered, remote memory it knows, and transfers between the two.

NIXL (https://github.com/ai-dynamo/nixl) moves bytes through UCX, which takes RDMA devices where there are some and else TCP.
It listens at ports of its own, on every network of the machine, and asks nobody there for a secret: whoever reaches them
may reach registered memory. So none of this happens unless the setting rdma_nixl allows it.
"""

from __future__ import annotations

import importlib
import logging
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Any

from monarch.config import settings
from monarch.rdma.memory import Memory
from monarch.rdma.once import OncePerProcess
from monarch.rdma.registry import Region

MODULES = ("nixl_cu12._api", "nixl_cu13._api", "nixl._api")
CALL_OFF = 5.0
KNOWN = 4096  # remote buffers whose description is kept; the one met first is forgotten

Pause = Callable[[int], None]


class NoAgentError(Exception):
    """This process has no NIXL agent; the text says why."""


class NixlError(Exception):
    """NIXL has failed to move bytes, or to get ready for it."""


class Lent:
    """A registered buffer as others reach it."""

    def __init__(self, agent: Agent, memory: Memory) -> None:
        self._agent = agent
        self._descriptors = agent.register(memory.address, memory.size)
        self.shown = agent.describe(self._descriptors)

    def close(self) -> None:
        self._agent.forget(self._descriptors)


class Agent:
    """Any thread."""

    def __init__(self) -> None:
        module = _module()
        try:
            mode = module.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
            config = module.nixl_agent_config(backends=["UCX"], sync_mode=mode)
            self._agent = module.nixl_agent(f"monarch-{uuid.uuid4().hex}", config)
        except Exception as exc:
            raise NoAgentError(f"NIXL cannot start its agent: {exc!r}") from exc
        self._lock = threading.Lock()
        self._known: OrderedDict[int, str] = OrderedDict()  # token of a remote buffer -> name of its agent
        self._stuck: list[Any] = []  # transfers that may still move bytes, and their memory

    def register(self, address: int, size: int) -> Any:
        try:
            return self._agent.register_memory([(address, size, 0, "")], "DRAM")
        except Exception as exc:
            raise NixlError(f"NIXL cannot register {size} bytes: {exc!r}") from exc

    def describe(self, descriptors: Any) -> bytes:
        """What another agent needs to reach this memory."""
        shown: bytes = self._agent.get_partial_agent_metadata(descriptors, inc_conn_info=True, backends=["UCX"])
        return shown

    def forget(self, descriptors: Any) -> None:
        try:
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

    def move(self, name: str, write: bool, memory: Memory, here: int, there: int, size: int, pause: Pause) -> None:
        """Between `size` bytes at `here`, which `memory` keeps alive, and registered memory of that agent.

        `pause(n)` is called before the n-th look whether it is done; when it raises, the transfer is called off and that is
        raised once nothing moves any more, or CALL_OFF seconds later; then the memory is kept for good.
        """
        registered = self.register(here, size)
        try:
            local = self._agent.get_xfer_descs([(here, size, 0)], "DRAM")
            remote = self._agent.get_xfer_descs([(there, size, 0)], "DRAM")
            transfer = self._agent.initialize_xfer("WRITE" if write else "READ", local, remote, name)
        except Exception as exc:
            self.forget(registered)
            raise NixlError(f"NIXL cannot prepare the transfer: {exc!r}") from exc
        try:
            self._wait(transfer, pause)
        finally:
            if self._over(transfer):
                self.forget(registered)
            else:
                self._stuck.append((transfer, registered, memory))

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
_made: OncePerProcess[Agent | NoAgentError] = OncePerProcess()


def agent() -> Agent:
    """This process's, made by the first call, which takes about half a second. NoAgentError."""
    if not settings.get("rdma_nixl"):
        raise NoAgentError("the setting rdma_nixl is off")
    known = _made.get(_agent)
    if isinstance(known, NoAgentError):
        raise known
    return known


def _agent() -> Agent | NoAgentError:
    try:
        return Agent()
    except NoAgentError as exc:
        return exc


def lend(region: Region) -> bytes:
    """In the owner: how others reach the buffer. It stays registered with NIXL until it is dropped. NoAgentError."""
    lender = agent()
    with _made.lock:
        if "nixl" not in region.lent:
            try:
                region.lent["nixl"] = Lent(lender, region.memory)
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
