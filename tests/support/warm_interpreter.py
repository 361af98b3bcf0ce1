"""An interpreter that has imported torch already, and forks a process for each program that needs it.

Importing torch and its compiler takes four seconds of a processor, most of what an example or a page does. What a program
finds is otherwise what a fresh interpreter has: its own `__main__`, arguments, folder, environment, streams and session, no
module of this package or of the tests, and an ordinary end. Its variables come too late for what reads them as Python or
torch is loaded (PYTHONHASHSEED, OMP_NUM_THREADS): those are the server's.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MODULES = ("numpy", "torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo")

_ROOT = Path(__file__).resolve().parents[2]
_SERVER = "from tests.support.warm_interpreter import serve; serve({descriptor})"


class WarmInterpreter:
    """Starts with the first program, ends with the process that made it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def run(
        self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Runs a script, `arguments[0]`, with an empty standard input until it has ended and nobody writes to its streams any
        more. Raises subprocess.TimeoutExpired after `timeout` seconds, and ends what is in its session."""
        if self._socket is None:
            self._socket = _start_server(env)
        request = json.dumps({"arguments": list(arguments), "cwd": str(cwd), "env": dict(env)}).encode()
        pipes = [os.pipe(), os.pipe()]
        with open(os.devnull, "rb") as stdin:
            streams = [stdin.fileno(), *(write for _, write in pipes)]
            socket.send_fds(self._socket, [len(request).to_bytes(4, "little")], streams)
        self._socket.sendall(request)
        for _, write in pipes:
            os.close(write)
        pid = self._answer()
        late = threading.Event()
        watchdog = threading.Timer(timeout, lambda: (late.set(), os.killpg(pid, signal.SIGKILL)))
        watchdog.start()
        with ThreadPoolExecutor(len(pipes)) as pool:
            out, err = pool.map(_read, [read for read, _ in pipes])
        status = self._answer()
        watchdog.cancel()
        if late.is_set():
            raise subprocess.TimeoutExpired(list(arguments), timeout, out, err)
        return subprocess.CompletedProcess(list(arguments), status, out, err)

    def _answer(self) -> int:
        assert self._socket is not None
        return int.from_bytes(_exactly(self._socket, 8), "little", signed=True)


def _read(descriptor: int) -> str:
    with open(descriptor, errors="replace") as stream:
        return stream.read()


def _start_server(env: Mapping[str, str]) -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-c", _SERVER.format(descriptor=theirs.fileno())]
        process = subprocess.Popen(
            command, cwd=_ROOT, env=dict(env), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
        )
    atexit.register(_end_server, process, ours)
    return ours


def _end_server(process: subprocess.Popen[bytes], ours: socket.socket) -> None:
    ours.close()
    process.wait()


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = connection.recv(size - len(found))
        if not more:
            raise EOFError("the warm interpreter has ended; it says why on stderr")
        found += more
    return found


def serve(descriptor: int) -> None:
    """The server's life. In a forked process it returns when the program has been run, to end as interpreters do."""
    connection = socket.socket(fileno=descriptor)
    for name in MODULES:
        __import__(name)
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "monarch")]:
        del sys.modules[name]
    sys.path.remove("")  # of -c
    while True:
        head, descriptors, _, _ = socket.recv_fds(connection, 4, 3)
        if not head:
            os._exit(0)
        request = json.loads(_exactly(connection, int.from_bytes(head, "little")))
        pid = os.fork()
        if pid == 0:
            connection.close()
            _become(request, descriptors)
            return
        for each in descriptors:
            os.close(each)
        connection.sendall(pid.to_bytes(8, "little", signed=True))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.sendall(status.to_bytes(8, "little", signed=True))


def _become(request: dict[str, Any], descriptors: Sequence[int]) -> None:
    os.setsid()
    for target, each in enumerate(descriptors):
        os.dup2(each, target)
        os.close(each)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    script = request["arguments"][0]
    sys.argv = request["arguments"]
    sys.path.insert(0, str(Path(script).parent))
    main = types.ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"] = main
    try:
        exec(compile(Path(script).read_bytes(), script, "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        assert error.__traceback__ is not None
        error.__traceback__ = error.__traceback__.tb_next  # this frame is no program's
        traceback.print_exception(error)
        sys.exit(1)
