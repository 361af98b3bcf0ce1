"""The life of a job: asked for, waited for, kept, found again, replaced, given back."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import ForkedClientError
from monarch.job import DEFAULT_JOB_PATH, Ended, JobTrait, Ready, SchedulerError, Waiting, job_load, job_loads
from monarch.job.names import LOGGER
from tests.job.fake_scheduler import HERE, FakeJob, Mesh, Noted, Scheduler

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture(autouse=True)
def scheduler() -> Iterator[Scheduler]:
    Scheduler.all = {"one": Scheduler(), "other": Scheduler()}
    yield Scheduler.all["one"]
    Scheduler.all = {}


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """Gives what the log of jobs says, without the prefix of a client that runs for other tests."""
    logger = logging.getLogger(LOGGER)
    logger.addHandler(caplog.handler)
    before = logger.level
    logger.setLevel(logging.INFO)
    yield lambda: [record.getMessage().removeprefix("[actor=<root>] ") for record in caplog.records]
    logger.setLevel(before)
    logger.removeHandler(caplog.handler)


def steps(job: FakeJob) -> list[str]:
    """Returns what was asked for, without the secret; then it is forgotten."""
    found = ["attach" if isinstance(one, tuple) else one for one in job.asked]
    job.asked.clear()
    return found


def test_a_job_is_applied_waited_for_and_kept(scheduler: Scheduler) -> None:
    job = FakeJob("one")
    assert (job.active, job.apply_id) == (False, None)
    scheduler.polls = [Waiting("(Resources)"), Waiting("(Priority)"), Ready(HERE)]
    state = job.state()
    assert steps(job) == ["submit", "attach"]
    assert isinstance(state.hosts, Mesh) and state.hosts.workers == HERE["hosts"]
    assert job.active and job.apply_id
    assert stat.S_IMODE(os.stat(DEFAULT_JOB_PATH).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(".monarch").st_mode) == 0o700


def test_the_next_program_finds_it_with_the_same_secret(told: Any) -> None:
    first, second = FakeJob("one"), FakeJob("one")
    first.state()
    second.state()
    (secret, again) = [one[1] for one in first.asked if isinstance(one, tuple)]
    assert secret == again and len(secret) == 64
    assert steps(first) == ["submit", "attach", "attach"]
    assert second.active and second.apply_id == first.apply_id
    assert told()[-1] == "Connecting to cached job"
    second.state()
    assert told()[-1] == "Job is running, returning current state"


def test_another_job_takes_its_place(told: Any) -> None:
    FakeJob("one").state()
    larger = FakeJob("one", 3)
    larger.state()
    assert steps(larger) == ["submit", "attach", "cancel", "submit", "attach"]
    loaded = job_load()
    assert isinstance(loaded, FakeJob) and loaded.size == 3


def test_a_job_that_has_ended_is_replaced(scheduler: Scheduler) -> None:
    FakeJob("one").state()
    scheduler.polls = [Ended("CANCELLED by 0"), Ready(HERE)]
    job = FakeJob("one")
    job.state()
    assert steps(job)[2:] == ["cancel", "submit", "attach"]


def test_a_job_is_not_given_up_because_its_scheduler_does_not_answer(scheduler: Scheduler) -> None:
    FakeJob("one").state()
    scheduler.polls = [SchedulerError("squeue: no answer"), Ready(HERE)]
    job = FakeJob("one")
    job.asked.clear()
    with pytest.raises(SchedulerError, match="squeue: no answer"):
        job.state()
    assert steps(job) == [] and not job.active
    job.state()
    assert steps(job) == ["attach"]


def test_one_that_cannot_be_ended_is_told_with_what_to_look_for(scheduler: Scheduler, told: Any) -> None:
    FakeJob("one").state()
    scheduler.refuses_to_cancel = SchedulerError("scancel: Permission denied")
    FakeJob("other").state()
    (line,) = [line for line in told() if "could not be ended" in line]
    assert "scancel: Permission denied" in line and "{'job_type': 'FakeJob', 'name': 'one'}" in line
    loaded = job_load()
    assert isinstance(loaded, FakeJob) and loaded.name == "other"


def test_the_link_stays_and_its_target_is_replaced() -> None:
    Path(".monarch/mine").mkdir(parents=True)
    Path(DEFAULT_JOB_PATH).symlink_to("mine/state.pkl")
    FakeJob("one").state()
    FakeJob("other").state()
    assert Path(DEFAULT_JOB_PATH).is_symlink()
    loaded = job_load(".monarch/mine/state.pkl")
    assert isinstance(loaded, FakeJob) and loaded.name == "other"


def test_nothing_is_looked_for_or_kept_without_a_path() -> None:
    FakeJob("one").state()
    job = FakeJob("one")
    job.asked.clear()
    job.state(cached_path=None)
    assert steps(job) == ["submit", "attach"]


# --- while it is waited for


@pytest.mark.parametrize(
    "failure",
    [Ended("FAILED (NonZeroExitCode)"), KeyboardInterrupt(), SchedulerError("squeue: error"), MemoryError()],
    ids=["ended", "interrupt", "mute", "memory"],
)
def test_what_goes_wrong_while_it_waits_gives_it_back(scheduler: Scheduler, failure: Any) -> None:
    job = FakeJob("one")
    scheduler.polls = [Waiting("(Resources)"), failure]
    with pytest.raises(SchedulerError if isinstance(failure, Ended) else type(failure)) as raised:
        job.state()
    if isinstance(failure, Ended):
        assert str(raised.value) == failure.why
    assert steps(job) == ["submit", "cancel"]
    assert not job.active and not Path(DEFAULT_JOB_PATH).exists()


def test_a_job_that_was_in_use_is_kept_when_it_cannot_be_reached(scheduler: Scheduler) -> None:
    job = FakeJob("one")
    job.state()
    scheduler.polls = [SchedulerError("squeue: no answer")]
    job.asked.clear()
    with pytest.raises(SchedulerError):
        job.state()
    assert steps(job) == [] and job.active


def test_an_order_that_is_refused_leaves_nothing(scheduler: Scheduler) -> None:
    job = FakeJob("one")
    scheduler.refuses = SchedulerError("sbatch: invalid partition specified: nope")
    with pytest.raises(SchedulerError, match="invalid partition"):
        job.state()
    assert not job.active and not Path(DEFAULT_JOB_PATH).exists()
    scheduler.refuses = None
    job.state()
    assert job.active


def test_hosts_that_come_too_late(scheduler: Scheduler) -> None:
    job = FakeJob("one")
    job.start_timeout = 0.0
    scheduler.polls = [Waiting("(PartitionConfig)")]
    with pytest.raises(SchedulerError, match=r"FakeJob has no hosts after 0 s; last it was said: \(PartitionConfig\)"):
        job.state()
    assert steps(job) == ["submit", "cancel"]


def test_each_reason_is_told_once(scheduler: Scheduler, told: Any) -> None:
    scheduler.polls = [Waiting("(Resources)"), Waiting("(Resources)"), Waiting("(Priority)"), Ready(HERE)]
    FakeJob("one").state()
    assert [line for line in told() if "waits" in line] == [
        "FakeJob waits for its hosts: (Resources) (0 s)", "FakeJob waits for its hosts: (Priority) (0 s)",
    ]  # fmt: skip


# --- its end


def test_components_connect_in_order_and_close_before_the_hosts_end() -> None:
    job = FakeJob("one")
    job._components += [Noted("admin", 2), Noted("mounts", 1)]
    job.state()
    assert steps(job) == [
        "submit", "mounts before", "admin before", "attach", "mounts connect", "admin connect",
    ]  # fmt: skip
    job.kill()
    assert steps(job) == ["admin close", "mounts close", "shutdown", "cancel"]
    job.kill()
    assert (steps(job), job.active, job.apply_id) == ([], False, None)


def test_a_mount_in_use_keeps_the_job_until_it_is_killed_again() -> None:
    job = FakeJob("one")
    job._components.append(Noted("mounts", 1, busy=1))
    job.state()
    job.asked.clear()
    with pytest.raises(OSError, match="busy"):
        job.kill()
    assert (steps(job), job.active) == ([], True)
    job.kill()
    assert (steps(job), job.active) == (["mounts close", "shutdown", "cancel"], False)


def test_a_found_job_is_killed_like_ones_own() -> None:
    FakeJob("one").state()
    job = FakeJob("one")
    job.state()
    job.asked.clear()
    job.kill()
    assert (steps(job), job.active) == (["shutdown", "cancel"], False)
    job.state()  # the file is still there, and what it keeps is not used
    assert "submit" in steps(job)


def test_a_job_travels_as_bytes() -> None:
    job = FakeJob("one")
    job.state()
    again = job_loads(job.dumps())
    assert again.active and again.apply_id == job.apply_id
    again.kill()
    assert steps(job)[-1] == "cancel"


def test_subclasses_of_programs_need_the_four_hooks_only() -> None:
    class Mine(JobTrait):
        def _create(self, client_script: str | None) -> None:
            self.made = True

        def _state(self) -> Any:
            return "the state"

        def can_run(self, spec: JobTrait) -> bool:
            return True

        def _kill(self) -> None:
            self.made = False

    job = Mine()
    assert job.state() == "the state"  # type: ignore[comparison-overlap]
    again = Mine()
    again.state()
    assert again.apply_id == job.apply_id and not hasattr(again, "made")
    job.kill()
    assert job.made is False


def test_an_installation_without_telemetry_says_so_and_goes_on(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from monarch.job.mounts.sidecar import Sidecar
    from monarch.telemetry import starting

    def fail(self: Sidecar, job: Any) -> None:
        raise RuntimeError("job sidecar failed to start the observer")

    monkeypatch.setattr(Sidecar, "start_observer", fail)
    monkeypatch.setattr(starting, "run_folder", lambda: "/nowhere")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    job = FakeJob("one").enable_telemetry(retention_secs=60)
    state = job.state()
    assert state.telemetry_url is state.admin_url is state.query_engine_client is None
    said = "\n".join(told())
    assert (
        "telemetry needs duckdb, which is not installed: pip install 'pymonarch[telemetry]'; the job goes on without"
        in said
    )
    assert (
        "job sidecar telemetry bootstrap failed; telemetry disabled for this job: job sidecar failed to start" in said
    )


def test_who_asks_for_telemetry_is_told_what_is_wrong_in_order() -> None:
    class Sick(FakeJob):
        health: Any = True

        def _is_running(self) -> bool:
            if isinstance(self.health, Exception):
                raise self.health
            return bool(self.health)

    job = Sick("one")
    with pytest.raises(RuntimeError, match="the saved job is not active"):
        job.telemetry_query_client()
    job.state()
    job.health = OSError("no route")
    with pytest.raises(RuntimeError, match="the health of the job could not be checked: OSError: no route"):
        job.telemetry_query_client()
    job.health = False
    with pytest.raises(RuntimeError, match="the job is not running or not healthy"):
        job.telemetry_query_client()
    job.health = True
    with pytest.raises(
        RuntimeError, match=r"not configured for this job: call enable_telemetry\(\) and apply it again"
    ):
        job.telemetry_query_client()
    job.enable_telemetry()
    with pytest.raises(RuntimeError, match="the connection to the job's telemetry failed"):
        job.telemetry_query_client()


def test_a_forked_child_asks_for_nothing_and_gives_nothing_back(scheduler: Scheduler) -> None:
    job = FakeJob("one")
    job.state(None)
    scheduler.polls = [Ended("gone")]
    scheduler.asked.clear()
    child = os.fork()
    if not child:
        status = 1
        try:
            for use in (job.kill, job.state, job.apply):
                with pytest.raises(ForkedClientError, match=rf"this FakeJob belongs to process {os.getppid()},"):
                    use()
            another = FakeJob("other")  # and one of its own is its own
            another.state(None)
            another.kill()
            status = 0 if scheduler.asked == [] else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    job.kill()
    assert "cancel" in steps(job)
