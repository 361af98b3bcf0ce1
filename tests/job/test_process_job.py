"""ProcessJob and LocalJob with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, ReplacePolicy, RestartPolicy, SupervisionError, endpoint
from monarch.job import LocalJob, ProcessJob, SchedulerError, job_load
from monarch.job import detached_sessions as own
from monarch.job.detached_sessions import DetachedSession
from tests.support.patience import TIMEOUT
from tests.support.processes import Watch, kill
from tests.support.scripts import Scripts
from tests.support.tiers import full

pytestmark = [pytest.mark.procs, pytest.mark.usefixtures("folder")]


class Where(Actor):
    @endpoint
    def host(self) -> str:
        return os.environ["HYPERACTOR_PROCESS_NAME"]

    @endpoint
    def env(self, name: str) -> str | None:
        return os.environ.get(name)

    @endpoint
    def start_sleeper(self) -> int:
        """A process that ignores SIGTERM, as some do."""
        import subprocess

        program = (
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
        )
        sleeper = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert sleeper.stdout is not None
        sleeper.stdout.readline()
        return sleeper.pid


@pytest.fixture
def jobs() -> Iterator[Any]:
    made: list[ProcessJob] = []

    def make(*args: Any, **kwargs: Any) -> ProcessJob:
        made.append(ProcessJob(*args, **kwargs))
        return made[-1]

    yield make
    for job in made:
        job.kill()


def sessions(job: Any) -> list[DetachedSession]:
    return list(job._holder._workers.values())


def test_hosts_are_found_again_and_end_with_the_job(jobs: Any) -> None:
    job = jobs({"trainers": 2, "loaders": 1}, env={"MINE": "yes"})
    state = job.state()
    assert (state.trainers.sizes, state.loaders.sizes) == ({"hosts": 2}, {"hosts": 1})
    procs = state.trainers.spawn_procs({"gpus": 2})
    where = procs.spawn("where", Where)
    assert list(where.host.call().get(timeout=TIMEOUT).values()) == ["trainers_0"] * 2 + ["trainers_1"] * 2
    assert set(where.env.call("MINE").get(timeout=TIMEOUT).values()) == {"yes"}
    assert set(where.env.call("MONARCH_SECRET").get(timeout=TIMEOUT).values()) == {None}
    procs.stop().get(timeout=TIMEOUT)

    again = jobs({"trainers": 2, "loaders": 1}, env={"MINE": "yes"})
    again.state()
    assert again.apply_id == job.apply_id and sessions(again) == sessions(job)
    watch = Watch([session.pid for session in sessions(job)])
    folder = job._folder
    assert oct(os.stat(folder).st_mode & 0o777) == "0o700"
    again.kill()
    assert watch.survivors(TIMEOUT) == {}
    assert not os.path.exists(folder)


@full
def test_what_processes_started_ends_with_the_job_too(jobs: Any) -> None:
    job = jobs({"hosts": 1})
    procs = job.state().hosts.spawn_procs()
    sleeper = procs.spawn("where", Where).start_sleeper.call_one().get(timeout=TIMEOUT)
    procs.stop().get(timeout=TIMEOUT)
    watch = Watch([sleeper])
    job.kill()
    assert watch.survivors(TIMEOUT) == {}


@full
def test_a_worker_that_died_is_told_and_the_next_program_gets_new_ones(jobs: Any) -> None:
    job = jobs({"hosts": 2})
    job.state()
    kill(sessions(job)[1].pid)  # a zombie at first, which is not alive either
    with pytest.raises(SchedulerError, match=r"lost connection to worker processes \(hosts_1\)"):
        job.state()
    again = jobs({"hosts": 2})
    again.state()
    assert again.apply_id != job.apply_id
    where = again.state().hosts.spawn_procs().spawn("where", Where)
    assert len(where.host.call().get(timeout=TIMEOUT)) == 2


@full
def test_a_worker_that_died_is_replaced_in_its_place(jobs: Any) -> None:
    """And the next program finds the new one."""
    job = jobs({"hosts": 2})
    hosts = job.state().hosts
    procs = hosts.spawn_procs()
    where = procs.spawn("where", Where)
    where.host.call().get(timeout=TIMEOUT)
    kill(sessions(job)[1].pid)
    with pytest.raises(SupervisionError):
        while True:
            where.slice(hosts=1).host.call_one().get(timeout=TIMEOUT)
    assert hosts.replace(failed=True).get(timeout=TIMEOUT) == [1]
    procs.restart(failed=True).get(timeout=TIMEOUT)
    where.restart(failed=True).get(timeout=TIMEOUT)
    assert list(where.host.call().get(timeout=TIMEOUT).values()) == ["hosts_0", "hosts_1"]
    procs.stop().get(timeout=TIMEOUT)
    again = jobs({"hosts": 2})
    again.state()
    assert again.apply_id == job.apply_id and sessions(again) == sessions(job)


@full
def test_a_spare_of_the_job_takes_a_place(jobs: Any) -> None:
    job = jobs({"hosts": 3}).use_spares(ReplacePolicy(), hosts=1)
    hosts = job.state().hosts
    assert hosts.sizes == {"hosts": 2}
    with RestartPolicy():
        where = hosts.spawn_procs().spawn("where", Where)
    assert list(where.host.call().get(timeout=TIMEOUT).values()) == ["hosts_0", "hosts_1"]
    kill(sessions(job)[1].pid)
    with pytest.raises(SupervisionError):
        while True:
            where.slice(hosts=1).host.call_one().get(timeout=TIMEOUT)
    where.healthy(timeout=TIMEOUT).get()
    assert list(where.host.call().get(timeout=TIMEOUT).values())[1] in ("hosts_1", "hosts_2")  # a new one, or the spare


@full
def test_spares_that_cannot_be(jobs: Any) -> None:
    with pytest.raises(ValueError, match="one spare or more"):
        jobs({"hosts": 2}).use_spares(hosts=0)
    with pytest.raises(ValueError, match="use_spares names mesh 'others', and the meshes are hosts"):
        jobs({"hosts": 1}).use_spares(others=1).state()
    with pytest.raises(ValueError, match="mesh 'hosts' has 1 hosts, and 1 of them would be spares"):
        jobs({"hosts": 1}).use_spares(hosts=1).state()


def test_a_worker_that_cannot_begin_says_why_and_nothing_is_left(jobs: Any) -> None:
    job = jobs({"hosts": 2}, env={"MONARCH_TLS_CA": "/missing.pem"})
    with pytest.raises(SchedulerError, match=r"(?s)worker hosts_. has ended: .*/missing\.pem"):
        job.state()
    assert (job.active, sessions(job), job._folder) == (False, [], None)


def test_what_cannot_be_is_told_before_anything_starts(jobs: Any) -> None:
    for meshes, what in [
        ({}, "one mesh or more"),
        ({"a": 0}, "one host or more"),
        ({"a/b": 1}, "not a name"),
        ({"x" * 120: 1}, "too long"),
    ]:
        with pytest.raises(ValueError, match=what):
            jobs(meshes).apply()
    with pytest.raises(RuntimeError, match="ProcessJob cannot run batch-mode scripts"):
        jobs({"hosts": 1}).apply("train.py")


@full
def test_a_job_may_be_used_in_an_event_loop(jobs: Any) -> None:
    """Without the warning that `get` gives there, which would fail this test."""

    async def main() -> list[str]:
        job = jobs({"hosts": 1})
        where = job.state().hosts.spawn_procs().spawn("where", Where)
        answers = (await where.host.call()).values()
        job.kill()
        return list(answers)

    assert asyncio.run(main()) == ["hosts_0"]


@full
def test_ctrl_c_while_it_starts_leaves_nothing(scripts: Scripts) -> None:
    """The worker is stopped before it listens, so the program waits until it is interrupted."""
    program = scripts.start(
        """
        import os, signal
        from monarch.job import ProcessJob, process

        def started(pid):
            os.kill(pid, signal.SIGSTOP)
            print(pid, flush=True)
            return session_of(pid)

        session_of, process.detached_sessions.session_of = process.detached_sessions.session_of, started
        ProcessJob({"hosts": 1}).state()
        """
    )
    assert program.stdout is not None
    worker = int(program.stdout.readline())
    watch = Watch([worker])
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=TIMEOUT)
    assert program.returncode == -signal.SIGINT and "ProcessJob was cancelled" in err
    assert watch.survivors(TIMEOUT) == {}
    assert not (scripts.folder / ".monarch/job_state.pkl").exists()


def test_a_process_that_has_its_pid_now_is_left_alone() -> None:
    mine = own.session_of(os.getpid())
    other = DetachedSession(mine.pid, mine.started - 1, mine.boot)
    assert (mine.alive(), other.alive(), other.members()) == (True, False, [])
    elsewhere = DetachedSession(mine.pid, mine.started, "another boot")
    assert (elsewhere.alive(), elsewhere.members()) == (False, [])
    own.end([other, elsewhere])


# --- LocalJob


def test_the_local_job_is_this_host() -> None:
    from monarch.actor import this_host

    job = LocalJob(["a", "b"])
    state = job.state()
    assert (state.a, state.b.sizes) == (this_host(), {})
    assert not LocalJob(["a", "b"]).can_run(job) and job._is_running()
    with pytest.raises(ValueError, match="no local batch job"):
        _ = job.process
    with pytest.raises(AttributeError, match=r"'c' is not a valid host mesh name\. Available names: a, b"):
        _ = state.c
    job.kill()


def test_a_batch_script_finds_the_job_and_its_output_is_kept(folder: Path) -> None:
    (folder / "client.py").write_text(
        "import os\n"
        "from monarch.job import LocalJob, BatchJob\n"
        "job = LocalJob(['a'])\n"
        "print(sorted(job.state()._hosts), type(job._holder).__name__, os.environ['MONARCH_BATCH_JOB'])\n"
    )
    job = LocalJob(["a"])
    job.apply("client.py")
    assert job.process.wait(TIMEOUT) == 0
    (log,) = folder.glob(".monarch/logs/job_*/stdout.log")
    assert log.read_text() == "['a'] BatchJob 1\n"
    assert oct(log.stat().st_mode & 0o777) == "0o600"
    assert not job_load().can_run(LocalJob(["a"]))  # outside of the batch job
