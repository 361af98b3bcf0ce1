"""The part of setting up torch.distributed that runs in the process of a rank.

torch waits in C++ for ranks that have died, some of it without any limit. So each attempt has a thread of its own, which is
left behind when the attempt is given up; most end at once then, because the store at which the ranks meet is closed.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from monarch._devices import own_device, vendors
from monarch._linux.locks import Lock
from monarch._text import first_line
from monarch.actor import Actor, context, current_rank, endpoint, on_actor_threads
from monarch.actor.lowlevel import start_thread
from monarch.spmd import device_mesh
from monarch.spmd.group_guard import LEAVING, OWN_THREADS, Member, Membership, guard, is_in_group, own_member, stores_at
from monarch.spmd.layout import VisibleDevices
from monarch.spmd.spmd_actor import host_and_port

_REACH = 15.0  # seconds that a rank tries to connect to the first one
_END = 10.0  # seconds that ending the group before may take
_GLOO = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915
_LOOPBACK = "127.0.0.1"


class TorchGroup(NamedTuple):
    """A group of torch, as far as a rank has to know it to join."""

    backend: str
    address: str
    port: int
    timeout: float | None
    setup_timeout: float


class _ProcessState:
    """State of what is set up in this process."""

    def __init__(self) -> None:
        self.store: Any = None  # the server of the group's store, on its first rank
        self.interface = ""  # the value of GLOO_SOCKET_IFNAME that is ours
        self.attempt: TorchSetup | None = None  # the last one
        self.lock = Lock()  # one attempt at a time changes torch's default group


_process = _ProcessState()


class TorchSetup(Actor):
    """One attempt. Whatever it has begun is undone when it ends without `keep`."""

    _is_system_actor = True

    def __init__(self) -> None:
        self.rank = current_rank().rank
        self._stage = ""
        self._kept = self._joined = False
        self._server: Any = None
        _process.attempt = self

    @endpoint
    async def look(self) -> tuple[VisibleDevices, Member]:
        """Returns what this process has, and which it is."""
        visible = os.environ.get(next(iter(vendors.visible_variables()), ""), "")
        return VisibleDevices(vendors.count(), visible), own_member()

    @endpoint
    async def leave(self) -> str:
        """Out of the collectives of the group before; returns what still is in one, "" when nothing is."""
        inside = guard.leave("it was ended by setup_torch_distributed(), which was called again", LEAVING)
        return f"{self._where()}: {', '.join(inside)}" if inside else ""

    @endpoint
    async def end_process(self) -> None:
        """The end of this process: nothing less ends what it is in."""
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    async def prepare(
        self,
        environment: dict[str, str],
        dims: dict[str, int],
        device: int | None,
        threads: int | None,
        members: Sequence[Member] | None,
    ) -> None:
        """Sets what the process's libraries and its program read. The death of one of `members` ends the group."""
        os.environ.update(environment)
        if members is None:
            guard.forget()
        else:
            stores = stores_at(environment["MASTER_ADDR"], int(environment["MASTER_PORT"]))
            guard.enter(Membership(self.rank, members), stores)
        device_mesh.ranks.are(dims)
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = str(threads)
            on_actor_threads("torch threads", lambda: _set_threads(threads))
        if device is not None:
            own_device.use(device, lambda: on_actor_threads("device", own_device.enter))
            on_actor_threads("device", own_device.start)

    @endpoint
    async def free_port(self, loopback: bool) -> tuple[str, int]:
        """Returns where others reach this process's host, and a port that is free there: for a store that the program
        opens."""
        address = _own_address(loopback)
        with _listening(address) as sock:
            return address, sock.getsockname()[1]

    @endpoint
    async def host_port(self, family: int) -> tuple[str, int]:
        """Returns the same as `free_port`, by this machine's own name, or with a family its address."""
        return host_and_port(family)

    @endpoint
    async def open(self, loopback: bool, seconds: float) -> tuple[str, int]:
        """On the first rank: the store at which the ranks meet. It listens at the address that is returned, and no other."""
        dist = device_mesh.torch_distributed()
        _process.store = None  # who waits at the one before is told so
        address = _own_address(loopback)
        sock = _listening(address)
        port = sock.getsockname()[1]
        self._server = _process.store = dist.TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=seconds),
            master_listen_fd=sock.detach(),
        )
        return address, port

    @endpoint
    async def join(self, group: TorchGroup) -> None:
        """Into the group: returns when all ranks are."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def finish(error: Exception | None) -> None:
            if done.cancelled() or done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        def run() -> None:
            error: Exception | None = None
            try:
                self._join(group)
            except Exception as exc:
                error = RuntimeError(f"{self._where()}, {self._stage}: {first_line(exc)}")
            try:
                loop.call_soon_threadsafe(finish, error)
            except RuntimeError:  # given up, and its loop is closed
                pass

        start_thread(run, f"{OWN_THREADS}setup")
        try:
            await asyncio.wait_for(done, group.setup_timeout)
        except TimeoutError:
            raise RuntimeError(f"{self._where()}, {self._stage}: not done after {group.setup_timeout:g} s") from None

    @endpoint
    async def keep(self) -> None:
        """Every rank is in the group."""
        self._kept = True
        guard.entered()

    def _join(self, group: TorchGroup) -> None:
        dist = device_mesh.torch_distributed()
        if "nccl" in group.backend:
            own_device.start()
        self._stage = "ending the process group before"
        _end_group()
        self._stage = f"connecting to rank 0 at {group.address}:{group.port}"
        own = _reach(group.address, group.port, self.rank)
        _choose_interface(own)
        seconds = timedelta(seconds=group.setup_timeout)
        store = dist.TCPStore(group.address, group.port, is_master=False, timeout=seconds)
        self._stage = f"waiting for the other ranks in init_process_group({group.backend!r})"
        limit = None if group.timeout is None else timedelta(seconds=group.timeout)
        with _process.lock:
            if _process.attempt is not self:
                return
            _start_numbering()
        dist.init_process_group(
            group.backend,
            store=store,
            rank=self.rank,
            world_size=int(os.environ["WORLD_SIZE"]),
            timeout=limit,
        )
        self._joined = True

    def _where(self) -> str:
        return f"rank {self.rank} ({socket.gethostname()}, pid {os.getpid()})"

    def __cleanup__(self, exc: Exception | None) -> None:
        if self._kept or _process.attempt is not self:
            return
        if self._server is not None:
            self._server = _process.store = None
        if self._joined:
            _end_group()


# --- the group before


def _end_group() -> None:
    """Leaves torch's default group, if this process is in one: within _END seconds, or RuntimeError."""
    if not is_in_group():
        return
    dist = sys.modules["torch.distributed"]
    failed: list[str] = []

    def end() -> None:
        try:
            if "nccl" in str(dist.get_backend()):  # its own end waits for kernels that wait for ranks that are gone
                dist.distributed_c10d._abort_process_group()
            else:
                dist.destroy_process_group()
        except Exception as exc:
            failed.append(first_line(exc))

    thread = start_thread(end, f"{OWN_THREADS}end")
    thread.join(_END)
    if thread.is_alive() or dist.is_initialized():
        why = failed[0] if failed else f"it has not ended within {_END:g} s"
        raise RuntimeError(f"{why}. Restart the process of this rank")


def _start_numbering() -> None:
    """Ranks meet under a name that torch makes of how many groups their process has begun. Attempts that failed count: who
    takes another's place would wait for ever for those that survived. Torch does this itself when a group is destroyed."""
    import torch.distributed as dist

    world = getattr(dist.distributed_c10d, "_world", None)
    if world is not None:
        world.group_count = 0


# --- the network


def _own_address(loopback: bool) -> str:
    """At which the other ranks reach this process's host."""
    return _LOOPBACK if loopback else urlsplit(context().actor_instance.actor_id.addr).hostname or _LOOPBACK


def _listening(address: str) -> socket.socket:
    """A socket at a free port of `address`; of every one where that is not an address of this machine's own."""
    family, _, _, _, name = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        try:
            sock.bind(name)
        except OSError:  # what others dial is another machine's: port forwarding, a container
            sock.bind(("", 0))
        sock.listen(1024)
    except BaseException:
        sock.close()
        raise
    return sock


def _reach(address: str, port: int, rank: int) -> str:
    """Connects to the first rank, and says by which of its own addresses this host does. RuntimeError when it cannot."""
    try:
        with socket.create_connection((address, port), timeout=_REACH) as sock:
            return str(sock.getsockname()[0])
    except OSError as exc:
        raise RuntimeError(
            f"rank {rank} on {socket.gethostname()} cannot reach rank 0 of the group at {address}:{port} "
            f"({exc.strerror or exc}): that port has to be open to the other hosts"
        ) from exc


def _choose_interface(own: str) -> None:
    """gloo would take the address that this host has for its own name, which is often a loopback one."""
    if os.environ.get(_GLOO, "") != _process.interface:
        return  # somebody has chosen
    name = interface_of(own)
    if name:
        os.environ[_GLOO] = _process.interface = name


def interface_of(address: str) -> str:
    """The network interface that has this address; "" when none is found."""
    if ":" in address:
        packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
        try:
            with open("/proc/net/if_inet6") as file:
                return next((fields[5] for fields in map(str.split, file) if fields[0] == packed), "")
        except OSError:
            return ""
    if address.startswith("127."):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                told = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(told[20:24]) == address:
                return name
    return ""


# --- torch, on an actor's thread


def _set_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)
