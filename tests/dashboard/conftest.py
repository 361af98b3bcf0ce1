"""A simulated job in a store, for the tests of the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from examples.simulated_dashboard import SimulatedJob, put
from monarch._mesh.inspection.diagnosis import Diagnosis
from monarch._mesh.output.kept import OutputPage, OutputRequest
from monarch.dashboard.pages.api import PageData
from monarch.dashboard.pages.live_data import LiveStacks
from monarch.telemetry.store import Store

START = 1_700_000_000_000_000
RANKS = 64


class Recorded:
    """A simulated job that has run for a time and stands still."""

    def __init__(self, store: Store, job: SimulatedJob) -> None:
        self.store = store
        self.job = job

    def about(self) -> dict[str, Any]:
        return {"name": "train.py", "pid": 4711, "started_us": START, "command": "python train.py"}

    def payloads(self) -> list[dict[str, Any]]:
        return self.job.payloads()

    def diagnosis(self) -> Diagnosis:
        return Diagnosis([], [], RANKS)

    def output(self, wanted: OutputRequest) -> list[OutputPage]:
        return self.job.output(wanted)

    def stacks(self) -> LiveStacks:
        return LiveStacks(list(self.job.stacks()), {"node9/agent": "it does not answer"})

    def stacks_of(self, reference: str) -> LiveStacks:
        return LiveStacks([stack for stack in self.job.stacks() if stack.where == "trainers 17"], {})

    def capture(self, reference: str) -> dict[str, Any]:
        if reference == "gone":
            raise RuntimeError("its process has ended")
        return {"Ok": {"pid": 1, "stack_traces": []}}

    def profile(self, seconds: float, path: str) -> None:
        if seconds == 13:
            raise RuntimeError("no luck")
        with open(path, "wb") as file:
            file.write(b"trace")

    def api(self) -> PageData:
        return PageData(self.store, self, lambda: self.job.now_us / 1e6)


@pytest.fixture(scope="module")
def recorded() -> Iterator[Recorded]:
    store = Store()
    job = SimulatedJob(ranks=RANKS, start_us=START, failure_at=12.0)
    put(store, job.advance(START + 60_000_000))
    yield Recorded(store, job)
    store.close()
