"""An InProcessCluster whose processes speak through real Unix sockets, so that system calls can fail under them.

The network of `monarch.testing` gives way to a SocketNetwork: listeners, connections and bytes are the kernel's. It delays,
holds and repeats nothing; that is what `faults` is for, by the calls of `tests/support/syscalls.py`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from types import TracebackType
from typing import Any

from monarch._wire.address import AGENT, name_of
from monarch._wire.transport import unix
from monarch._wire.transport.stream import StreamConnection
from monarch.testing import InProcessCluster, VirtualClock
from monarch.testing.network import InprocTransport, Network
from tests.support.syscalls import Faults, FaultySocket, installed, watch


class SocketNetwork(Network):
    """See the module. One host; its folder is `folder`."""

    def __init__(self, seed: int, folder: str, faults: Faults) -> None:
        super().__init__(seed)
        self._folder = folder
        self._faults = faults
        self._open: dict[InprocTransport, tuple[unix.Listener, int]] = {}
        self._ends: dict[InprocTransport, list[StreamConnection]] = {}

    def _path(self, address: str) -> str:
        return os.path.join(self._folder, name_of(address))

    def listen(self, transport: InprocTransport) -> None:
        path = self._path(transport.address)
        with self._faults.quiet():  # without it there is no process
            listening = unix.listen(path)
            listener = unix.Listener(listening, transport.loop, lambda sock: self._begin(transport, sock, ""))
        self._open[transport] = listener, os.stat(path).st_ino

    def close(self, transport: InprocTransport) -> None:
        listener, number = self._open.pop(transport, (None, 0))
        if listener is not None:
            listener.close()
            path = self._path(transport.address)
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == number:  # not a successor's
                    os.unlink(path)

    def connect(self, dialler: InprocTransport, address: str) -> Any:
        with self._faults.quiet() if name_of(address) == AGENT else contextlib.nullcontext():
            sock = unix.dial(self._path(address), wait=False)
            try:
                connection = self._begin(dialler, sock, address)
            except BaseException:
                sock.close()
                raise
        return connection

    def _begin(self, transport: InprocTransport, sock: Any, remote: str) -> StreamConnection:
        limit, frame_limit = transport.limits()
        connection = StreamConnection(sock, transport.loop, transport.handler, limit=limit, frame_limit=frame_limit)
        connection.remote = remote
        if isinstance(sock, FaultySocket):
            sock.pair = (transport.address, remote)  # type: ignore[attr-defined]
        connection.start()  # one that does not start is nobody's to close: its descriptor is another's by then
        ends = self._ends.setdefault(transport, [])
        ends[:] = [end for end in ends if not end.lost]
        ends.append(connection)
        return connection

    def ends_of(self, transport: InprocTransport) -> Any:
        return [end for end in self._ends.get(transport, ()) if not end.lost]

    def under_way(self) -> int:
        return 0


class SocketCluster(InProcessCluster):
    """The first process and the agent begin without faults; then they are on until the end begins."""

    def __init__(self, *, clock: VirtualClock, seed: int, patience: float, faults: Faults) -> None:
        super().__init__(clock=clock, seed=seed, patience=patience)
        self._folder = tempfile.mkdtemp(prefix="mns")
        self.network: SocketNetwork = SocketNetwork(seed, self._folder, faults)
        self.faults = faults
        self._installed = installed(faults)

    def __enter__(self) -> SocketCluster:
        self._installed.__enter__()
        super().__enter__()
        watch(self._loop, self.faults)
        self.faults.on = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.faults.on = False
        assert self.clock is not None
        self.clock.advance(1.0)  # connections that rest go on, and see that they have ended
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._installed.__exit__(None, None, None)
            shutil.rmtree(self._folder, ignore_errors=True)
