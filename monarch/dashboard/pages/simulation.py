"""The simulated job, growing in a store as time goes by."""

from __future__ import annotations

import threading
import time
from typing import Any

from monarch.dashboard.pages.live_data import LiveStacks
from monarch.dashboard.pages.simulated_job import SimulatedJob


class Simulation:
    """`LiveData` for the dashboard. `store`: has insert(table, rows), as monarch.telemetry.store.Store."""

    def __init__(
        self, store: Any, *, ranks: int = 64, failure_at: float | None = 60.0, interval: float = 1.0, past: float = 0.0
    ) -> None:
        start_us = int((time.time() - past) * 1e6)
        self._store = store
        self._interval = interval
        self._job = SimulatedJob(ranks=ranks, start_us=start_us, failure_at=failure_at)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="simulation", daemon=True)
        self.catch_up()

    def start(self) -> None:
        """It goes on by itself until `close`."""
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def catch_up(self) -> None:
        """Puts into the store what has happened until now."""
        with self._lock:
            for table, rows in self._job.advance(int(time.time() * 1e6)).items():
                self._store.insert(table, rows)

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            self.catch_up()

    # --- as LiveData

    def about(self) -> dict[str, Any]:
        return {
            "name": "simulated job",
            "pid": None,
            "started_us": self._job.start_us,
            "command": f"a simulated job of {self._job.ranks} ranks",
        }

    def payloads(self) -> list[dict[str, Any]]:
        with self._lock:
            return self._job.payloads()

    def stacks(self) -> LiveStacks:
        with self._lock:
            return LiveStacks(list(self._job.stacks()), {})

    def stacks_of(self, reference: str) -> LiveStacks:
        name, _, rank = reference.partition("<")[0].rpartition("-")
        mine = [stack for stack in self.stacks().stacks if stack.where == f"{name} {rank}"]
        return LiveStacks(mine, {} if mine else {reference: "its process does not answer"})

    def capture(self, reference: str) -> dict[str, Any]:
        raise RuntimeError("a simulated process has no stacks of its own")

    def profile(self, seconds: float, path: str) -> None:
        raise RuntimeError("a simulated job cannot be profiled")
