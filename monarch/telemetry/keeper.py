"""The process with the tables, as who has started it uses it."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from monarch._linux import companion, local_socket
from monarch._linux.locks import Lock

logger = logging.getLogger("monarch.observer")

MEMORY, READ, WRITE = "memory", "read", "write"  # modes: of a new one in memory; of a file
LARGEST = 1 << 30  # bytes of a command
_STARTS = 60.0  # seconds: the engine is loaded
_WRITES = 120.0  # seconds for a command; then it is stuck
_ENDS = 3.0


class Write(msgspec.Struct, frozen=True):
    """Statements, which are run all or none, and the Arrow tables that they read: name and bytes of each, which follow."""

    statements: list[str]
    tables: list[tuple[str, int]] = []


class Wrote(msgspec.Struct, frozen=True):
    """The first number that each statement gave: rows that were changed, or counted. `error`: none was run. `writes`: so
    many commands have been run in all."""

    counts: list[int] = []
    error: str = ""
    writes: int = 0


class KeeperLost(RuntimeError):
    """The process with the tables has ended, and what it kept in memory is lost."""


class WriteFailed(RuntimeError):
    """Nothing of it was written; in the engine's words."""


class Keeper:
    """A process with the tables: in memory, or in the file `path`. Any thread. It ends with this process."""

    def __init__(self, path: str = "", mode: str = MEMORY, *, memory: int, engine_memory: int = 0) -> None:
        """ValueError when the file is none with telemetry."""
        self._commands, commands = socket.socketpair()
        self._askers, askers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._writing = Lock()
        self._compacting = "CHECKPOINT datafusion" if mode == MEMORY else "CHECKPOINT"
        self.writes = 0
        numbers = [str(sock.fileno()) for sock in (commands, askers)]
        arguments = [*numbers, path, mode, str(memory), str(engine_memory)]
        # One arena: the address space of a query has a bound, which those of threads would use up.
        environment = companion.environment(MALLOC_ARENA_MAX="1", OMP_NUM_THREADS="1")
        with commands, askers:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "monarch.telemetry.keeper_process", *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[commands.fileno(), askers.fileno()],
                env=environment,
                cwd="/",
            )
        self._commands.settimeout(_STARTS)
        try:
            opened = self._receive()
        except KeeperLost:
            self.close()
            if mode == MEMORY:
                raise
            raise ValueError(
                f"{path} cannot be opened: the engine has ended over it, or took longer than {_STARTS:g} s. It is damaged, "
                f"or made to do harm"
            ) from None
        if opened.error:
            self.close()
            raise ValueError(opened.error)
        self._commands.settimeout(_WRITES)

    def write(self, statements: Sequence[str], reading: Mapping[str, Any] | None = None) -> list[int]:
        """Runs statements, all of them or none; they may read the Arrow tables `reading`. Returns the first number that each
        gives. WriteFailed; KeeperLost."""
        tables = {name: _packed(table) for name, table in (reading or {}).items()}
        order = Write(list(statements), [(name, len(content)) for name, content in tables.items()])
        with self._writing:
            try:
                local_socket.send(self._commands, msgspec.msgpack.encode(order))
                for content in tables.values():
                    self._commands.sendall(content)
            except OSError as exc:
                raise self._lost(exc) from None
            wrote = self._receive()
        if wrote.error:
            raise WriteFailed(wrote.error)
        self.writes = wrote.writes
        return wrote.counts

    def compact(self) -> None:
        """Gives back the memory of rows that were deleted."""
        self.write([self._compacting])

    def copy(self, asking: socket.socket) -> None:
        """Has a copy of it answer at that socket. KeeperLost."""
        try:
            socket.send_fds(self._askers, [b"."], [asking.fileno()])
        except OSError as exc:
            raise self._lost(exc) from None

    def close(self) -> None:
        """Ends it. May be called again."""
        for sock in (self._askers, self._commands):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()
        try:
            self.process.wait(_ENDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _receive(self) -> Wrote:
        try:
            return msgspec.msgpack.decode(local_socket.receive(self._commands, LARGEST), type=Wrote)
        except (OSError, EOFError) as exc:
            raise self._lost(exc) from None

    def _lost(self, exc: Exception) -> KeeperLost:
        if isinstance(exc, TimeoutError):
            self.process.kill()  # what it would answer later is no answer to what is asked then
        return KeeperLost(f"the process that keeps the tables of telemetry (pid {self.process.pid}) has ended: {exc}")


def _packed(table: Any) -> Any:
    """The Arrow table as bytes."""
    import pyarrow as pa

    into = pa.BufferOutputStream()
    with pa.ipc.new_stream(into, table.schema) as stream:
        stream.write_table(table)
    return memoryview(into.getvalue())
