"""Hosts that do not answer: the scheduler is asked meanwhile, and says sooner than attaching does that they will not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.job import Ended, Ready, SchedulerError
from tests.job.fake_scheduler import HERE, FakeJob, Scheduler


class Silent:
    """A Future that has no value, or one of a mesh that could not be attached."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.failure = failure

    def get(self, timeout: float | None = None) -> bool:
        if self.failure is not None:
            raise self.failure
        threading.Event().wait(timeout)
        raise TimeoutError(f"no result after {timeout}")


class SilentJob(FakeJob):
    poll_interval = 0.05

    def __init__(self, name: str, answer: Silent) -> None:
        super().__init__(name)
        self._answer = answer

    def _attach(self, workers: Any) -> Any:
        meshes = super()._attach(workers)
        for mesh in meshes.values():
            mesh.initialized = self._answer
        return meshes


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    Scheduler.all["silent"] = made = Scheduler()
    yield made
    del Scheduler.all["silent"]


def test_a_host_that_has_ended_is_not_waited_for(scheduler: Scheduler) -> None:
    scheduler.polls = [
        Ready(HERE),
        Ready(HERE),
        SchedulerError("does not answer just now"),
        Ended("node n2 is on fire"),
    ]
    with pytest.raises(SchedulerError, match="node n2 is on fire"):
        SilentJob("silent", Silent()).state(cached_path=None)
    assert scheduler.asked[-1] == "cancel"


@pytest.mark.parametrize(
    "failure", [TimeoutError("not within 60 s"), ConnectionError("refused")], ids=["late", "refused"]
)
def test_what_attaching_says_is_raised(scheduler: Scheduler, failure: Exception) -> None:
    with pytest.raises(type(failure), match=str(failure)):
        SilentJob("silent", Silent(failure)).state(cached_path=None)
    assert scheduler.asked[-1] == "cancel"
