"""The owner of a buffer, as another process of its host sees it: whether it can be looked into, whether it still lives, and
the lock under which others write to a buffer.

May this process look into that one? The kernel asks as it does for ptrace: same user, dumpable, no capabilities that we
lack, and what a security module adds. Yama's (`ptrace_scope` 1) lets only ancestors look; the owner then names, by
PR_SET_PTRACER, one process whose descendants may: the parent of the host agent, which all processes of a program on a
host stem from.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import struct
from collections import OrderedDict

from monarch._linux import procfs
from monarch._linux.locks import Lock
from monarch._linux.procfs import start_of
from monarch.actor.host_agent import agent_pid
from monarch.rdma.buffer_handle import BufferHandle, Owner, buffer_dropped, owner_ended, this_host
from monarch.rdma.registry import WORD, lock

VIEWS = 64  # owners whose descriptors are kept; the one met first is forgotten

_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_PR_SET_PTRACER = 0x59616D61
_VECTOR = struct.Struct("=2Q")  # struct iovec


def _call(library: ctypes.CDLL, name: str) -> ctypes._NamedFuncPointer:
    function = getattr(library, name)
    function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong)
    function.restype = ctypes.c_ssize_t
    return function  # type: ignore[no-any-return]


class _Calls:
    """The two system calls, with the interpreter lock held (small copies: releasing it may cost a switch) and
    without.
    """

    def __init__(self) -> None:
        holding, free = ctypes.PyDLL(None, use_errno=True), ctypes.CDLL(None, use_errno=True)
        self.small_read, self.read = _call(holding, "process_vm_readv"), _call(free, "process_vm_readv")
        self.small_write, self.write = _call(holding, "process_vm_writev"), _call(free, "process_vm_writev")
        self.prctl = free.prctl


try:
    CALLS: _Calls | None = _Calls()
except AttributeError:  # a libc or kernel without them
    CALLS = None


_let = 0  # the process that has asked


def let_peers_read() -> None:
    """Lets the program's other processes look into this one, under Yama. Called in the owner, before it shows a buffer.

    Cheap the second time.
    """
    global _let
    if _let == os.getpid():
        return
    _let = os.getpid()
    try:
        with open(_YAMA, encoding="ascii") as file:
            scope = file.read().strip()
    except OSError:
        return
    if scope == "1" and CALLS is not None:
        CALLS.prctl(_PR_SET_PTRACER, ctypes.c_ulong(_tracer()), 0, 0, 0)


def _tracer() -> int:
    """Returns the process whose descendants are everybody of this program here: the agent's parent, but for pid 1 the agent.

    In the client that is the client itself, which has started the agent: its own parent may not look into it.
    """
    agent = agent_pid()
    if not agent:
        return os.getpid()
    found = procfs.stat(agent)
    return found.parent if found is not None and found.parent > 1 else agent


class OwnerView:
    """An owner seen from here: may we look into it, and by which descriptors do we know it. Any thread."""

    def __init__(self, handle: BufferHandle) -> None:
        self.owner = handle.owner
        self.file = -1
        self.process = -1
        self._poll = select.poll()
        self._lock = Lock()
        self._writing: dict[int, int] = {}
        self.obstacle = self._probe(handle)

    def _probe(self, handle: BufferHandle) -> str:
        assert CALLS is not None
        pid = self.owner.pid
        word = ctypes.create_string_buffer(WORD.size)
        local = ctypes.create_string_buffer(_VECTOR.pack(ctypes.addressof(word), WORD.size), _VECTOR.size)
        remote = ctypes.create_string_buffer(_VECTOR.pack(handle.word, WORD.size), _VECTOR.size)
        if CALLS.read(pid, ctypes.addressof(local), 1, ctypes.addressof(remote), 1, 0) < 0:
            code = ctypes.get_errno()
            if code not in (errno.ESRCH, errno.EFAULT):
                return f"process_vm_readv: {os.strerror(code)} (see ptrace(2), 'Ptrace access mode checking')"
        try:
            self.process = os.pidfd_open(pid)
            self.file = os.open(f"/proc/{pid}/fd/{self.owner.table}", os.O_RDONLY | os.O_CLOEXEC)
        except (ProcessLookupError, FileNotFoundError):
            return ""  # it has ended: the transfer finds that out
        except OSError as exc:
            return f"its table of control words cannot be opened: {exc.strerror}"
        self._poll.register(self.process, select.POLLIN)
        if start_of(pid) != self.owner.started:  # another process has the pid by now
            os.close(self.file)
            self.file = -1
        return ""

    def enter(self, handle: BufferHandle) -> None:
        """Takes the buffer's lock, or raises why it cannot be written to."""
        slot = handle.slot
        with self._lock:
            if self.file < 0 or self._poll.poll(0):
                raise owner_ended(handle)
            if not self._writing.get(slot):
                try:
                    lock(self.file, fcntl.F_RDLCK, slot)
                except BlockingIOError:  # the owner holds it for the moment in which it gives the memory back
                    raise buffer_dropped(handle) from None
            self._writing[slot] = self._writing.get(slot, 0) + 1
        try:
            word = os.pread(self.file, WORD.size, slot * WORD.size)
            if len(word) < WORD.size or WORD.unpack(word)[0] != handle.token:
                raise buffer_dropped(handle)
        except BaseException:
            self.leave(slot)
            raise

    def leave(self, slot: int) -> None:
        with self._lock:
            left = self._writing[slot] - 1
            if left:
                self._writing[slot] = left
            else:
                del self._writing[slot]
                lock(self.file, fcntl.F_UNLCK, slot)

    def __del__(self) -> None:
        for descriptor in (self.file, self.process):
            if descriptor >= 0:
                os.close(descriptor)


_views: OrderedDict[Owner, OwnerView] = OrderedDict()
_finding = Lock()


def view_of_owner(handle: BufferHandle) -> OwnerView:
    owner = handle.owner
    known = _views.get(owner)
    if known is None:
        with _finding:
            known = _views.get(owner)
            if known is None:
                known = _views[owner] = OwnerView(handle)
                while len(_views) > VIEWS:
                    _views.popitem(last=False)  # transfers under way keep theirs
    return known


def _forget_views() -> None:
    """Forgets, in a forked child, what was opened: locks belong to open files, which it would share with its parent."""
    global _finding
    _finding = Lock()
    _views.clear()


os.register_at_fork(after_in_child=_forget_views)


def why_unreachable(handle: BufferHandle) -> str:
    """Returns why this process cannot look into the buffer's owner; "" when it can, or when that has ended."""
    here = this_host()
    if not here or handle.owner.host != here:
        return "the owner is on another host, or in another container"
    if CALLS is None:
        return "this system has no process_vm_readv"
    return view_of_owner(handle).obstacle
