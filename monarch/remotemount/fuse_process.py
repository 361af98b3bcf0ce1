"""The process that serves a FUSE mount, as its owner sees it; and whether this machine can have one."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from ctypes.util import find_library

from monarch._linux import companion, private_files, procfs
from monarch._linux.locks import Condition
from monarch.actor import bind_context
from monarch.actor.lowlevel import start_thread
from monarch.remotemount.fuse_messages import (
    BeginMount,
    Message,
    Mounted,
    NotMounted,
    Settled,
    Unmount,
    Unmounted,
    UnmountRefused,
    Wire,
)

START = 60.0  # seconds until a mount that does not start is given up
UNMOUNT = 30.0  # and an unmount
_END = 10.0  # until a process that was told to end is killed


def obstacle() -> str:
    """Returns why this machine cannot mount with FUSE, and what to install; "" when nothing is known that speaks against
    it."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as exc:
        return f"/dev/fuse cannot be opened ({exc.strerror}): containers have to be given that device"
    if shutil.which("fusermount3") is None:
        return "there is no fusermount3: install the system's package fuse3"
    if find_library("fuse3") is None:
        return "there is no libfuse3: install the system's package fuse3"
    if importlib.util.find_spec("mfusepy") is None:
        return "the package mfusepy is missing: pip install 'pymonarch[fuse]'"
    return ""


def machine() -> str:
    """Equal for processes that see the same mounts."""
    return procfs.namespace("mnt")


def mounted_at(point: str) -> str | None:
    """The name of a mount of ours at `point`; "" for one of others; None when nothing is mounted there."""
    found = None
    real = os.path.join(os.path.realpath(os.path.dirname(point)), os.path.basename(point))
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            front, _, back = line.partition(" - ")
            kind, name, *_ = back.split()
            if _plain(front.split()[4]) == real:
                found = _plain(name) if kind == "fuse.monarch" else ""
    return found


def _plain(text: str) -> str:
    """Octal escapes of the kernel undone."""
    for code in ("040", "011", "012", "134"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text


def clear_stale(point: str) -> None:
    """Takes away a mount at `point` whose process is dead."""
    try:
        os.stat(point)
    except OSError as exc:
        if exc.errno != errno.ENOTCONN:
            return
        for command in (["fusermount3", "-u", "-z", "--", point], ["umount", "-l", "--", point]):
            try:
                if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                    return
            except OSError:
                continue


class MountFailed(RuntimeError):
    """Nothing was mounted; the text says why."""


class MountBusy(RuntimeError):
    """A mount is in use and stays; the text names it."""


class FuseProcess:
    """A mount at `point`, which is made where it is missing. `received` gets what it asks for, on a thread of its own."""

    def __init__(self, point: str, kind: str, name: str, received: Callable[[Message], None]) -> None:
        self.point = point
        self._received = received
        self._changed = Condition()
        self._last: Message | None = None
        self._settled = 0
        self._gone = False
        self._made = _make_folder(point)
        ours, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "monarch.remotemount.fuse_program", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=self._errors,
                    stderr=self._errors,
                    cwd="/",
                    # Nothing from below the mount; and it is not killed as what is left of a run: it ends by itself, and
                    # only then takes the mount away.
                    env=companion.environment(FUSE_LIBRARY_NAME="fuse3"),
                    start_new_session=True,  # so that it sees its owner's end, and is not killed with it
                )
        except BaseException:
            ours.close()
            self._errors.close()
            raise
        self._wire = Wire(ours)
        _all.add(self)
        self._wire.send(BeginMount(os.fsencode(point), kind, name))
        self._listener = start_thread(bind_context(self._listen), "monarch-mount")

    def send(self, message: Message) -> None:
        """OSError when the process is gone."""
        self._wire.send(message)

    def mounted(self) -> None:
        """Waits until it is mounted. MountFailed; nothing is left then."""
        last = self._wait((Mounted, NotMounted), START)
        if not isinstance(last, Mounted):
            why = last.why if isinstance(last, NotMounted) else "it did not answer"
            self.abandon()
            raise MountFailed(f"{self.point}: {self._said or why}")

    def settle(self, number: int) -> None:
        """Waits until the tree `number` is what everybody sees."""
        with self._changed:
            self._changed.wait_for(lambda: self._settled >= number or self._gone, START)

    def unmount(self) -> str:
        """Unmounts; returns why it is in use, "" when it is gone."""
        with self._changed:
            self._last = None  # what it says from now on is the answer
        try:
            self._wire.send(Unmount())
        except OSError:
            pass
        last = self._wait((Unmounted, UnmountRefused), UNMOUNT)
        if isinstance(last, UnmountRefused):
            return last.why
        self.abandon()
        return ""

    def abandon(self) -> None:
        """The process ends, and its mount with it, in use or not."""
        self._wire.shut()
        try:
            self._process.wait(_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()
        self._wire.close()
        clear_stale(self.point)
        if self._made:
            try:
                os.rmdir(self.point)
            except OSError:
                pass
        if not self._errors.closed:
            self._errors.seek(0)
            self._text = self._errors.read()[-2000:].decode(errors="replace").strip()
            self._errors.close()

    def forked(self) -> None:
        """In a forked child: the mount is the parent's, and ends with it even if the child lives on."""
        self._wire.close()

    _text = ""

    @property
    def _said(self) -> str:
        """Returns the last line that it and libfuse wrote: known when it has ended."""
        return self._text.splitlines()[-1] if self._text else ""

    def _listen(self) -> None:
        while (message := self._wire.receive()) is not None:
            if isinstance(message, Settled):
                with self._changed:
                    self._settled = message.number
                    self._changed.notify_all()
            elif isinstance(message, Mounted | NotMounted | UnmountRefused | Unmounted):
                with self._changed:
                    self._last = message
                    self._changed.notify_all()
            else:
                self._received(message)
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    def _wait(self, kinds: tuple[type[Message], ...], limit: float) -> Message | None:
        with self._changed:
            self._changed.wait_for(lambda: isinstance(self._last, kinds) or self._gone, limit)
            return self._last if isinstance(self._last, kinds) else None


_all: weakref.WeakSet[FuseProcess] = weakref.WeakSet()


def _after_fork() -> None:
    for process in list(_all):
        process.forked()


os.register_at_fork(after_in_child=_after_fork)


def _make_folder(point: str) -> bool:
    """True if the folder was missing, and was made."""
    try:
        private_files.make_folder(os.path.dirname(point), mine=False, closed=False)
        os.mkdir(point, 0o700)
    except FileExistsError:
        return False
    return True
