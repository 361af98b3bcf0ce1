"""A time limit for code that runs on a thread other than the main one, where no alarm can be set."""

from __future__ import annotations

import ctypes
import threading
from types import TracebackType
from typing import ClassVar, Self

from monarch._linux.locks import Lock

__all__ = ["ThreadTimeout", "ThreadTimeoutError"]

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc


class ThreadTimeoutError(BaseException):
    """The time is over. Not an Exception, so that what catches those lets it through."""

    def __init__(self, message: str = "the time of a ThreadTimeout is over") -> None:
        super().__init__(message)


class ThreadTimeout:
    """Raises ThreadTimeoutError in the thread that runs the block, once it has run for `seconds`:

        with ThreadTimeout(5):
            work()

    It arrives between two steps of Python code, so not while a call to native code (`time.sleep`, a read, a kernel) lasts:
    then it arrives behind it. Blocks may not be nested, and the main thread has `signal.setitimer`: RuntimeError. ValueError
    unless `seconds` is more than 0.
    """

    _active: ClassVar[set[int]] = set()  # of threads, by ident

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"seconds is more than 0, got {seconds!r}")
        self.seconds = seconds
        self._lock = Lock()
        self._over = False
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        thread = threading.get_ident()
        if threading.current_thread() is threading.main_thread():
            raise RuntimeError("ThreadTimeout is for other threads than the main one, which has signal.setitimer")
        if thread in self._active:
            raise RuntimeError("ThreadTimeout cannot be nested: this thread is inside another one")
        self._active.add(thread)
        self._over = False
        self._timer = threading.Timer(self.seconds, self._fire, (thread,))
        self._timer.daemon = True
        self._timer.start()
        return self

    def _fire(self, thread: int) -> None:
        with self._lock:
            if not self._over:
                self._over = True
                _raise_in(ctypes.c_ulong(thread), ctypes.py_object(ThreadTimeoutError))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        thread = threading.get_ident()
        assert self._timer is not None
        try:
            self._timer.cancel()
            with self._lock:
                fired, self._over = self._over, True
        finally:  # it may arrive here as well
            self._active.discard(thread)
        if fired and kind is not ThreadTimeoutError:
            # It was on its way and has not arrived: it must not arrive in what comes behind the block.
            _raise_in(ctypes.c_ulong(thread), None)
            raise ThreadTimeoutError(f"not done within {self.seconds:g} s") from error
