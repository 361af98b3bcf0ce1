"""An editor debugs this process: debugpy here, whose bytes go to and fro in questions and answers of the runtime.

debugpy connects to a socket that this process has made for it, and talks to nobody else: no port is open that would let other
users of the host run code here, and nothing connects to one that they might have taken. The threads of the runtime are not
traced, so that the process goes on answering while all others stand at a breakpoint. `exchange` runs on the I/O thread and
does not wait.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from monarch._linux import loopback_peer
from monarch._linux.locks import Lock

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc

MISSING = "editors attach by debugpy, which is not installed where the rank runs: pip install 'pymonarch[debug]'"
_CONNECT = 30.0  # seconds for debugpy to start
_STOP = 10.0  # and to stop
_READ = 1 << 18  # bytes of one answer
_WAITING = 16 << 20  # bytes for debugpy that it has not taken; with more the conversation ends


class EditorAttached(msgspec.Struct, frozen=True):
    """`number` names the conversation; `folder`: the current one of the process."""

    number: int
    host: str
    pid: int
    folder: str


class EditorInput(msgspec.Struct, frozen=True):
    """Bytes of the editor. `last`: it has gone."""

    number: int
    data: bytes = b""
    last: bool = False


class EditorOutput(msgspec.Struct, frozen=True):
    """Bytes for the editor. `ended`: there will be no more."""

    data: bytes = b""
    ended: bool = False


class _Conversation:
    """The talk with one editor. `tracer`: debugpy's for it. `hook`: what breakpoint() called before."""

    def __init__(self, number: int, sock: socket.socket, hook: Any, tracer: Any) -> None:
        sock.setblocking(False)
        self.number = number
        self.hook = hook
        self.tracer = tracer
        self._sock = sock
        self._to_send = bytearray()

    def exchange(self, data: bytes) -> EditorOutput:
        self._to_send += data
        try:
            while self._to_send:
                del self._to_send[: self._sock.send(self._to_send)]
        except BlockingIOError:
            if len(self._to_send) > _WAITING:
                return EditorOutput(ended=True)
        except OSError:
            pass  # what it said before is read below
        try:
            came = self._sock.recv(_READ)
        except BlockingIOError:
            return EditorOutput()
        except OSError:
            came = b""
        return EditorOutput(came, not came)

    def close(self) -> None:
        self._sock.close()


_now: _Conversation | None = None
_last = 0
_first_mtime = 0  # of the next conversation's tracer
_lock = Lock()


def begin(proc: Proc, argument: bytes) -> bytes:
    """Starts debugpy, or connects it again. One editor at a time: the one before is left."""
    global _now, _last
    _spare_this_thread()
    with _lock:
        debugpy = _loaded()
        if _now is not None:
            _leave(_now)
        _spare_runtime()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            threading.Thread(
                target=_connect, args=(debugpy, listening.getsockname()), name="monarch-debugpy", daemon=True
            ).start()
            sock = _accepted(listening)
        # From Python 3.12 on pydevd keeps for the process where it stops in a function, as long as `mtime` is the same. Each
        # tracer counts its changes of breakpoints from 0, and would believe what was so in an earlier conversation.
        tracer = _tracer()
        tracer.mtime += _first_mtime
        _last += 1
        _now = _Conversation(_last, sock, sys.breakpointhook, tracer)
        sys.breakpointhook = _hook(debugpy, sys.breakpointhook)
    return _opened(_last)


def _loaded() -> Any:
    """Returns debugpy, with all that it loads when it is first used. RuntimeError when it is not installed."""
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # a warning on stderr, for nobody
    hook, breakpoint_ = sys.breakpointhook, builtins.breakpoint
    # pydevd sets a hook as it is loaded that has whoever listens at port 5678 of this machine debug the process. No thread
    # that comes to a breakpoint meanwhile may call it.
    builtins.breakpoint = hook
    try:
        import debugpy  # noqa: T100

        # A process that is started from here would connect to the port that it connected to, which is closed by then and
        # may be anybody's.
        debugpy.configure(subProcess=False)
    except ImportError:
        raise RuntimeError(MISSING) from None
    finally:
        sys.breakpointhook, builtins.breakpoint = hook, breakpoint_
    return debugpy


def _hook(debugpy: Any, before: Any) -> Any:
    """Returns what breakpoint() calls while the conversation lasts: debugpy passes over it when no editor is attached."""

    def stop(*args: Any, **kwargs: Any) -> Any:
        return debugpy.breakpoint() if debugpy.is_client_connected() else before(*args, **kwargs)

    return stop


def _accepted(listening: socket.socket) -> socket.socket:
    """Returns the first connection of this user's program."""
    limit = time.monotonic() + _CONNECT
    while True:
        listening.settimeout(max(0.001, limit - time.monotonic()))
        sock, _ = listening.accept()
        if loopback_peer.is_socket_ours(sock):
            return sock
        sock.close()


def check(proc: Proc, argument: bytes) -> bytes:
    """Checks that an editor could attach. RuntimeError says why not."""
    if importlib.util.find_spec("debugpy") is None:
        raise RuntimeError(MISSING)
    return _opened(0)


def _opened(number: int) -> bytes:
    return msgspec.msgpack.encode(EditorAttached(number, socket.gethostname(), os.getpid(), os.getcwd()))


def exchange(proc: Proc, argument: bytes) -> bytes:
    """Passes bytes on. On the I/O thread."""
    asked = _decode(argument)
    conversation = _now
    if conversation is None or conversation.number != asked.number:
        return msgspec.msgpack.encode(EditorOutput(ended=True))
    answer = conversation.exchange(asked.data)
    return msgspec.msgpack.encode(answer)


def end(proc: Proc, argument: bytes) -> bytes:
    """The editor has gone: all threads go on, nothing is traced any more."""
    _spare_this_thread()
    with _lock:
        if _now is not None and _now.number == _decode(argument).number:
            _leave(_now)
    return b""


_decode = msgspec.msgpack.Decoder(EditorInput).decode


def _leave(conversation: _Conversation) -> None:
    global _now, _first_mtime
    _now = None
    conversation.close()
    importlib.import_module("pydevd").stoptrace()  # debugpy's tracer, importable where debugpy is loaded
    limit = time.monotonic() + _STOP
    while _tracer() is not None and time.monotonic() < limit:  # its own threads may be stopping it at this moment
        time.sleep(0.01)
    sys.breakpointhook = conversation.hook
    _first_mtime = conversation.tracer.mtime + 1


def _tracer() -> Any:
    """Returns debugpy's tracer of this moment, or None."""
    return importlib.import_module("_pydevd_bundle.pydevd_constants").get_global_debugger()


def _connect(debugpy: Any, address: tuple[str, int]) -> None:
    """Returns when the editor has said all that it has to say at first."""
    _spare_this_thread()
    try:
        debugpy.connect(address)
    except Exception as error:  # the conversation has ended before it began
        print(f"monarch: debugpy: {error!r}", file=sys.stderr, flush=True)


def _spare_runtime() -> None:
    """All threads of the runtime but those of actors."""
    for thread in threading.enumerate():
        if thread.name.startswith("monarch") and not thread.name.startswith("monarch-actor"):
            _spare(thread)


def _spare_this_thread() -> None:
    _spare(threading.current_thread())


def _spare(thread: Any) -> None:
    """Attributes that pydevd, debugpy's tracer, looks at."""
    thread.pydev_do_not_trace = True
    thread.is_pydev_daemon_thread = True
