"""Waking a process that sleeps: a pipe each, that others write a byte to. Found through /proc, which asks for the same
permission as reading the other's memory.

A pipe and not a futex: the kernel starts its reader on the core of a writer that is about to sleep, which is faster, and an
event loop can wait for it.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from monarch._linux.locks import RLock

_BYTES = 4096
_A_TURN = 200e-6  # seconds that giving way takes when somebody computes on the core, and does not stop by itself
_LEAVE_OUT = 256, 4096  # waits without looking after that, the first time and at most
_CALM = 100  # waits without that, until it is the first time again


class SharedMachine(NamedTuple):
    """The things that two processes have in common which can share memory."""

    boot: str
    pids: int  # the namespace of process ids
    user: int


def this_machine() -> SharedMachine:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return SharedMachine(file.read().strip(), os.stat("/proc/self/ns/pid").st_ino, os.getuid())


class DescriptorAt(NamedTuple):
    """A descriptor of a process, for others to open what it stands for."""

    pid: int
    fd: int

    def open(self, flags: int) -> int:
        """OSError when that process is gone, also when its number is that of another user's process by now: root may open
        that, and what is written there is unpickled."""
        fd = os.open(f"/proc/{self.pid}/fd/{self.fd}", flags | os.O_CLOEXEC)
        if os.fstat(fd).st_uid != os.geteuid():
            os.close(fd)
            raise PermissionError(f"descriptor {self.fd} of pid {self.pid} is another user's")
        return fd


class _Bell:
    """The end of a pipe that is written to, by any thread, also after it was closed."""

    def __init__(self, write: int) -> None:
        self._write = write
        self._lock = RLock()  # the descriptor's number may be another file's once it is closed

    def ring(self) -> None:
        """Wakes who sleeps, or will. Nothing once it is closed, or when the other process has ended: others tell of that."""
        with self._lock:
            try:
                os.write(self._write, b"\0")
            except OSError:  # or full: it is awake
                pass

    def close(self) -> None:
        with self._lock:
            write, self._write = self._write, -1
            if write >= 0:
                os.close(write)


class OwnBell(_Bell):
    """The bell of a thread that sleeps; `ring` on any thread, all else on that one."""

    def __init__(self) -> None:
        self._read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(write, False)
        super().__init__(write)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)
        self.at = DescriptorAt(os.getpid(), write)

    def fileno(self) -> int:
        return self._read

    def sleep(self, timeout: float | None = None) -> None:
        """Returns once it was rung since the last time, or after `timeout` seconds."""
        if timeout is None or self._poll.poll(max(0.0, timeout) * 1000):
            os.read(self._read, _BYTES)

    def forget(self) -> None:
        """It counts as not rung."""
        if self._poll.poll(0):
            os.read(self._read, _BYTES)

    def close(self) -> None:
        """Wakes who still sleeps."""
        self.ring()
        super().close()
        read, self._read = self._read, -1
        if read >= 0:
            os.close(read)


class OtherBell(_Bell):
    """The bell of another process. OSError when that is gone."""

    def __init__(self, at: DescriptorAt) -> None:
        super().__init__(at.open(os.O_WRONLY | os.O_NONBLOCK))


class Spin:
    """Looks again and again for a short time, before a thread sleeps: waking a core that sleeps takes far longer. Gives its
    core to others who want it meanwhile. Where somebody has it for a whole turn of the scheduler, there is none to spare,
    and it does not look for a while, which grows. Who has it for a moment may be the one that is waited for, or the kernel.

    0 seconds: not at all. `now` is the clock, `give_way` lets others run.
    """

    def __init__(
        self,
        seconds: float,
        now: Callable[[], float] = perf_counter,
        give_way: Callable[[], None] = os.sched_yield,
    ) -> None:
        self._seconds = seconds
        self._now = now
        self._give_way = give_way
        self._calm = 0  # waits in a row in which nobody had a turn
        self._pause, self._left_out = _LEAVE_OUT[0], 0

    def until(self, there: Callable[[], bool]) -> bool:
        """Returns whether `there()` became true."""
        if not self._seconds:
            return False
        if self._left_out:
            self._left_out -= 1
            return False
        before = self._now()
        end = before + self._seconds
        while before < end:
            if there() or there() or there():  # giving way costs more than that
                break
            self._give_way()
            now = self._now()
            if now - before > _A_TURN:
                self._calm, self._left_out = 0, self._pause
                self._pause = min(2 * self._pause, _LEAVE_OUT[1])
                return there()
            before = now
        self._calm += 1
        if self._calm == _CALM:
            self._pause = _LEAVE_OUT[0]
        return before < end
