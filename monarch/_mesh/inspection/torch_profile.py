"""torch.profiler in one process, begun and ended from outside (questions "torch.start", "torch.stop" and "torch.take").

It sees all threads of the process, whichever of them began it, where torch can do that. It records operators on CPUs, and
kernels on devices when there are any. What it collects is bounded by time: it ends by itself when nobody has ended it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import zlib
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._linux.locks import Lock
from monarch._mesh.inspection.recording import process_name

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc

LARGEST = 64 << 20  # bytes of the trace of one process; of a larger one only that is told
_LONGEST = 300.0  # seconds after which it ends by itself


class Trace(msgspec.Struct):
    """`packed`: what torch's `export_chrome_trace` writes, by zlib; b"" when there is none, and `why` says why.
    `process`: as telemetry calls it. `threads`: of actors, by the number that the system gives them."""

    packed: bytes
    why: str
    pid: int
    process: str
    threads: dict[int, str]


_lock = Lock()
_running: Any = None
_ended: Any = None  # what has ended, and was not taken yet
_timer: threading.Timer | None = None


def start(proc: Proc, argument: bytes) -> bytes:
    """Begins. Processes that have not loaded torch take no part."""
    global _running, _timer
    torch = sys.modules.get("torch")
    if torch is None:
        return msgspec.msgpack.encode("torch is not loaded there")
    with _lock:
        if _running is not None:
            return msgspec.msgpack.encode("torch.profiler runs there already")
        from torch.profiler import profile, supported_activities

        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # what torch would print into the program's output
        profiler = profile(activities=list(supported_activities()), **_all_threads())
        profiler.start()
        _running = profiler
        _timer = threading.Timer(_LONGEST, _end)
        _timer.daemon = True
        _timer.start()
    return msgspec.msgpack.encode("")


def _all_threads() -> dict[str, Any]:
    """torch's way to see the threads of actors from the one that answers here."""
    try:
        from torch._C._profiler import _ExperimentalConfig

        return {"experimental_config": _ExperimentalConfig(profile_all_threads=True)}
    except (ImportError, TypeError):  # of an older torch: it sees this thread, and what devices do
        return {}


def _end() -> None:
    global _running, _ended, _timer
    with _lock:
        if _timer is not None:
            _timer.cancel()
            _timer = None
        if _running is not None:
            _ended, _running = _running, None
            _ended.stop()


def stop(proc: Proc, argument: bytes) -> bytes:
    """Ends it. What was recorded is kept until it is taken, or it begins again."""
    _end()
    return b""


def _threads_of_actors(proc: Proc) -> dict[int, str]:
    actors = {actor.thread_ident: f"{actor.name}[{actor.rank}]" for actor in list(proc.actors.values())}
    return {
        thread.native_id: actors[thread.ident]
        for thread in threading.enumerate()
        if thread.native_id is not None and thread.ident in actors
    }


def take(proc: Proc, argument: bytes) -> bytes:
    """Answers with what was recorded, and forgets it."""
    global _ended
    with _lock:
        profiler, _ended = _ended, None
    about = (proc.pid, process_name(proc), _threads_of_actors(proc))
    if profiler is None:
        return msgspec.msgpack.encode(Trace(b"", "torch.profiler did not run there", *about))
    descriptor, path = tempfile.mkstemp(suffix=".json", prefix="monarch-torch-")  # 0600
    os.close(descriptor)
    try:
        profiler.export_chrome_trace(path)
        size = os.path.getsize(path)
        if size > LARGEST:
            why = f"its trace has {size >> 20} MiB, and {LARGEST >> 20} MiB are taken at most: profile a shorter time"
            return msgspec.msgpack.encode(Trace(b"", why, *about))
        with open(path, "rb") as file:
            return msgspec.msgpack.encode(Trace(zlib.compress(file.read(), 1), "", *about))
    finally:
        os.unlink(path)
