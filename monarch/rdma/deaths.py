"""Hears of the end of other processes of this host. One thread waits for all of them, by their pidfds (pidfd_open(2)); it
ends with the last.
"""

from __future__ import annotations

import errno
import logging
import os
import select
from collections.abc import Callable

from monarch._linux.locks import Lock
from monarch._linux.procfs import start_of
from monarch.actor.lowlevel import start_thread
from monarch.rdma.buffer_handle import Owner

WATCHED = 4096  # processes; of the end of others nobody hears

Ended = Callable[[Owner], None]


class Deaths:
    """The processes whose end is waited for. Any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._files: dict[int, Owner] = {}
        self._told: dict[Owner, dict[Ended, None]] = {}
        self._epoll: select.epoll | None = None

    def watch(self, process: Owner, ended: Ended) -> None:
        """Calls `ended(process)`, which does not wait, on a thread of its own when the process ends; before this returns if
        it has ended already. Once, however often it is asked for. Does not raise: where a process cannot be watched, nothing
        is called.
        """
        with self._lock:
            told = self._told.get(process)
            if told is not None:
                told[ended] = None
                return
            if len(self._told) >= WATCHED:
                return
            try:
                file = self._open(process)
                self._wait_for(file, process)
            except ProcessLookupError:
                pass
            except (OSError, RuntimeError) as exc:  # no descriptor or thread left, or a kernel before 5.3
                logging.getLogger("monarch").debug("the end of %s cannot be heard of: %s", process, exc)
                return
            else:
                self._told[process] = {ended: None}
                return
        self._tell(process, [ended])

    def __len__(self) -> int:
        return len(self._told)

    def forget(self) -> None:
        """Forgets all, in a forked child: these are its parent's."""
        files, epoll = list(self._files), self._epoll
        self.__init__()  # type: ignore[misc]
        for file in files:
            os.close(file)
        if epoll is not None:
            epoll.close()

    def _open(self, process: Owner) -> int:
        file = os.pidfd_open(process.pid)
        if start_of(process.pid) != process.started:  # a zombie, or another process that has the pid by now
            os.close(file)
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        return file

    def _wait_for(self, file: int, process: Owner) -> None:
        epoll = self._epoll
        try:
            if epoll is None:
                epoll = select.epoll()
                start_thread(self._run, "monarch-rdma-deaths", epoll)
                self._epoll = epoll
            epoll.register(file, select.EPOLLIN)
        except BaseException:
            os.close(file)
            raise
        self._files[file] = process

    def _run(self, epoll: select.epoll) -> None:
        while True:
            over: list[tuple[Owner, list[Ended]]] = []
            for file, _ in epoll.poll():
                with self._lock:
                    process = self._files.pop(file)
                    over.append((process, list(self._told.pop(process))))
                    epoll.unregister(file)
                    os.close(file)
            for process, told in over:
                self._tell(process, told)
            with self._lock:
                if not self._files:
                    self._epoll = None
                    epoll.close()
                    return

    def _tell(self, process: Owner, told: list[Ended]) -> None:
        for ended in told:
            try:
                ended(process)
            except Exception:
                logging.getLogger("monarch").exception("what %s had is not let go of", process)


deaths = Deaths()
os.register_at_fork(after_in_child=deaths.forget)
