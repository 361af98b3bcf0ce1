"""A scheduler that says what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

from typing import Any

from monarch.job import Ended, Ready, ScheduledJob, WorkerLaunch
from monarch.job.components import JobComponent

HERE = {"hosts": ["ipc:///nowhere/0", "ipc:///nowhere/1"]}


class Mesh:
    """Stands for an attached HostMesh."""

    def __init__(self, workers: list[str], asked: list[Any]) -> None:
        self.workers = workers
        self.initialized = Done()
        self._asked = asked

    def shutdown(self) -> Done:
        self._asked.append("shutdown")
        return Done()


class Done:
    """A Future that has its value."""

    def get(self, timeout: float | None = None) -> bool:
        return True


class Scheduler:
    """The part of a scheduler that outlives the programs that use it, by name."""

    all: dict[str, Scheduler]

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.polls: list[Any] = []  # what is said next; the last one from then on
        self.refuses: BaseException | None = None
        self.refuses_to_cancel: BaseException | None = None
        self.given = False  # whether the hosts are somebody's


Scheduler.all = {}


class FakeJob(ScheduledJob):
    poll_interval = 0.0

    def __init__(self, name: str, size: int = 2) -> None:
        super().__init__()
        self.name = name
        self.size = size

    @property
    def scheduler(self) -> Scheduler:
        return Scheduler.all[self.name]

    @property
    def asked(self) -> list[Any]:
        return self.scheduler.asked

    def _submit(self, launch: WorkerLaunch, client_script: str | None) -> None:
        self.asked.append("submit")
        if self.scheduler.refuses is not None:
            raise self.scheduler.refuses
        self.scheduler.given = True

    def _poll(self) -> Any:
        if not self.scheduler.given:
            return Ended("there is no such job")
        polls = self.scheduler.polls
        said = polls.pop(0) if len(polls) > 1 else polls[0] if polls else Ready(HERE)
        if isinstance(said, BaseException):
            raise said
        return said

    def _cancel(self) -> None:
        self.asked.append("cancel")
        if self.scheduler.refuses_to_cancel is not None:
            raise self.scheduler.refuses_to_cancel
        self.scheduler.given = False

    def _same(self, spec: Any) -> bool:
        return self.name == spec.name and self.size == spec.size  # type: ignore[no-any-return]

    def _attach(self, workers: dict[str, list[str]]) -> Any:
        assert self._launch is not None
        self.asked.append(("attach", self._launch.secret))
        return {name: Mesh(addresses, self.asked) for name, addresses in workers.items()}

    def _cleanup_log_context(self) -> dict[str, Any]:
        return {"name": self.name}


class Noted(JobComponent):
    """Notes when it is called; `busy` are the times that closing fails."""

    def __init__(self, name: str, order: int, busy: int = 0) -> None:
        self.name = name
        self.order = order
        self.busy = busy

    def before_connect(self, job: Any) -> None:
        job.asked.append(f"{self.name} before")

    def connect(self, job: Any, state: Any) -> None:
        job.asked.append(f"{self.name} connect")

    def close(self, job: Any) -> None:
        if self.busy:
            self.busy -= 1
            raise OSError("busy")
        job.asked.append(f"{self.name} close")
