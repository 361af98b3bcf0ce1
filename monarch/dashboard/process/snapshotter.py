"""Takes the tree of the program into the tables, now and then."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable

import msgspec

from monarch._wire.address import AGENT, host_of, name_of
from monarch.admin.program_tree import assemble
from monarch.admin.programs import Program, ProgramGone
from monarch.telemetry.snapshots import snapshot_rows
from monarch.telemetry.store import Store

logger = logging.getLogger("monarch.observer")

_ASK = 5.0  # seconds for a process to answer; what has not is noted as silent


class Snapshotter:
    """Every `seconds`, at once to begin with. A program that is gone or stuck is not captured; the next tick tries again."""

    def __init__(self, program: Program, store: Store, seconds: float) -> None:
        self._program = program
        self._store = store
        self._seconds = seconds
        self._ended = threading.Event()
        self._silent: set[str] = set()

    def start(self) -> Callable[[], None]:
        """On a thread of its own, until what this returns is called."""
        threading.Thread(target=self._run, name="snapshots", daemon=True).start()
        return self._ended.set

    def missing_hosts(self) -> set[str]:
        """Hosts whose agents did not answer the last time."""
        return self._silent

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            try:
                self.once()
            except (ProgramGone, TimeoutError, ValueError) as exc:
                logger.info("no snapshot: %s", exc)
            except Exception:
                if not self._ended.is_set():
                    logger.exception("no snapshot")
            due = max(due + self._seconds, time.monotonic())  # a tick that the last capture has overrun is left out

    def once(self) -> None:
        now = time.time()
        tree = assemble(self._program.ask("tree", timeout=_ASK, agents=True), now)
        self._silent = {host_of(address) for address in tree.silent if name_of(address) == AGENT}
        nodes = [msgspec.to_builtins(node) for node in tree.nodes.values()]
        rows = snapshot_rows(str(uuid.uuid4()), nodes, round(now * 1e6))
        for table in sorted(rows, key=lambda table: (table == "snapshots", table)):
            self._store.insert(table, rows[table])
