"""SSHJob with real sshds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import SupervisionError
from monarch.config import settings
from monarch.job import SchedulerError, SSHJob, job_load
from tests.lab.actors import TIMEOUT, names, spawn
from tests.lab.site import until
from tests.lab.ssh import SshLab
from tests.support.faults import Faults

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("folder")]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def jobs(ssh_lab: SshLab) -> Iterator[Any]:
    """Makes jobs on these hosts; those that the test has not killed are killed at its end."""
    made: list[SSHJob] = []

    def make(hosts: dict[str, list[str]], **arguments: Any) -> SSHJob:
        job = SSHJob(**({"python_exe": sys.executable} | arguments))
        for name, there in hosts.items():
            job.add_mesh(name, there)
        made.append(job)
        return job

    yield make
    for job in made:
        job.kill()


def test_hosts_of_several_meshes_and_kill_leaves_nothing(jobs: Any, ssh_lab: SshLab) -> None:
    job = jobs({"trainers": ["s2", "s1"], "actors": ["s3"]})
    state = job.state()
    assert names(state.trainers) == ["s2", "s1"] and names(state.actors) == ["s3"]
    shown = str(ssh_lab.processes()) + Path(f"/proc/{job._workers['s1'].login.pid}/cmdline").read_bytes().decode()
    assert "monarch worker" in shown and job._launch.secret not in shown
    logs = Path(job._folder)
    assert logs.stat().st_mode & 0o777 == 0o700
    job.kill()
    assert ssh_lab.processes() == {} and not logs.exists()


OUTLIVES = """
import sys
sys.path.insert(0, {root!r})
from monarch.job import SSHJob
from tests.lab.actors import names
job = SSHJob(python_exe=sys.executable{how})
job.add_mesh("nodes", ["s1", "s2"])
print("names", names(job.state().nodes), flush=True)
{then}
"""


@pytest.mark.parametrize("then", ["", "import os; os.kill(os.getpid(), 9)"], ids=["ends", "is-killed"])
def test_workers_end_with_the_program_where_that_is_asked_for(ssh_lab: SshLab, folder: Path, then: str) -> None:
    """And its output is not held open by what it has started: this would read for ever."""
    source = OUTLIVES.format(root=str(ROOT), how=", outlive=False", then=then)
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert "names ['s1', 's2']" in ran.stdout, ran.stderr
    until(lambda: ssh_lab.processes() == {}, "the end of the workers")
    kept = job_load()
    logs = Path(kept._folder)  # type: ignore[attr-defined]
    assert logs.exists() == bool(then)
    kept.kill()
    assert not logs.exists()


@pytest.mark.parametrize("then", ["", "import os; os.kill(os.getpid(), 9)"], ids=["ends", "is-killed"])
def test_workers_stay_when_the_program_ends_and_are_found_by_the_next(
    jobs: Any, ssh_lab: SshLab, folder: Path, then: str
) -> None:
    source = OUTLIVES.format(root=str(ROOT), how="", then=then)
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert "names ['s1', 's2']" in ran.stdout, ran.stderr
    workers = [line for lines in ssh_lab.processes().values() for line in lines if "monarch worker" in line]
    assert len(workers) == 2
    job = jobs({"nodes": ["s1", "s2"]})
    assert names(job.state().nodes) == ["s1", "s2"]
    assert len([line for lines in ssh_lab.processes().values() for line in lines if "monarch worker" in line]) == 2
    job.kill()
    until(lambda: ssh_lab.processes() == {}, "the end of the workers")


def test_verbs_of_the_command_line_share_the_hosts(ssh_lab: SshLab, folder: Path) -> None:
    """Each is a program of its own."""
    Path("cluster.py").write_text(
        "import sys\nfrom monarch.job import SSHJob\njob = SSHJob(python_exe=sys.executable)\n"
        "job.add_mesh('nodes', ['s1', 's2'])\n"
    )

    def monarch(*words: str) -> str:
        command = [sys.executable, "-m", "monarch", *words]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    monarch("apply", "cluster.job")
    workers = [line for lines in ssh_lab.processes().values() for line in lines if "monarch worker" in line]
    assert len(workers) == 2
    kept = job_load()
    assert kept._launch.lease == settings.job_lease()  # type: ignore[attr-defined]
    assert sorted(monarch("exec", "--all", "--stream", "hostname").splitlines()) == ["[hosts=0] s1", "[hosts=1] s2"]
    monarch("apply")
    assert job_load().apply_id == kept.apply_id
    monarch("kill")
    until(lambda: ssh_lab.processes() == {}, "the end of the workers")


def test_workers_that_outlive_their_ssh_are_ended_by_kill(jobs: Any, ssh_lab: SshLab, faults: Faults) -> None:
    """The connection broke, and the program holds no mesh of them: kill goes over a new one."""
    job = jobs({"nodes": ["s1", "s2"]})
    assert names(job.state().nodes) == ["s1", "s2"]
    for process in job._processes.values():
        process.kill()
        process.wait()
    job._processes.clear()
    assert job.can_run(job)  # they are there, though nothing of ours leads to them any more
    job._attached.clear()
    job.kill()
    until(lambda: ssh_lab.processes() == {}, "the end of the workers")


def test_a_lost_host_is_named_and_the_others_go_on(jobs: Any, ssh_lab: SshLab, folder: Path) -> None:
    job = jobs({"nodes": ["s1", "s2", "s3"]})
    state = job.state()
    nodes = spawn(state.nodes)
    call = nodes.wait_for_ever.call(str(folder))
    until(lambda: len(list(folder.glob("begun-*"))) == 3, "the call on every host")
    ssh_lab.hosts[1].kill_processes()
    with pytest.raises(SupervisionError, match=ssh_lab.hosts[1].address):
        call.get(TIMEOUT)
    assert names(state.nodes.slice(hosts=slice(2, 3))) == ["s3"]
    with pytest.raises(SchedulerError, match="workers may be left on s2, which could not be reached"):
        job.kill()


# --- what people get wrong


def taken(lab: SshLab) -> Callable[[], None]:
    """Port 22222 of s2 is in use until the call."""
    at = lab.hosts[1].address
    source = f"import socket; s = socket.create_server(({at!r}, 22222)); print(1, flush=True); input()"
    taker = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert taker.stdout is not None and taker.stdout.readline()

    def leave() -> None:
        taker.communicate()

    return leave


@pytest.mark.parametrize(
    ("host", "arguments", "told"),
    [
        ("refuses", {}, "host refuses: ssh could not get there: .*Connection refused.*sshd runs there"),
        ("unknown", {}, "host unknown: .*Could not resolve hostname"),
        ("stranger", {}, "host stranger: .*Permission denied.*`ssh stranger true` works without a question"),
        ("impostor", {}, "host impostor: .*Host key verification failed"),
        ("s2", {"python_exe": "/nowhere/python"}, "/nowhere/python could not be run there"),
        ("s2", {"python_exe": "/usr/bin/python3"}, "No module named.*install pymonarch"),
        ("s2", {"ssh_args": ["--nonsense"]}, "host s.: .*(illegal|unknown) option"),
    ],
)
def test_what_went_wrong_is_a_sentence(
    jobs: Any, ssh_lab: SshLab, host: str, arguments: dict[str, Any], told: str
) -> None:
    job = jobs({"nodes": ["s1", host]}, **arguments)
    with pytest.raises(SchedulerError, match=rf"(?s){told}"):
        job.state()
    assert not job.active
    until(lambda: ssh_lab.processes() == {}, "the end of what was started")


def test_a_port_that_is_taken(jobs: Any, ssh_lab: SshLab) -> None:
    leave = taken(ssh_lab)
    try:
        with pytest.raises(SchedulerError, match=r"host s2: .*Address already in use\. Port 22222 is taken there"):
            jobs({"nodes": ["s1", "s2"]}).state()
    finally:
        leave()


def test_a_host_that_never_answers_is_given_up(jobs: Any, ssh_lab: SshLab) -> None:
    """Its sshd is there and stopped: ssh connects, and nothing comes back."""
    stopped = [pid for pid, line in ssh_lab.hosts[1].processes().items() if "sshd" in line]
    subprocess.run(["kill", "-STOP", *map(str, stopped)], check=True)
    try:
        with pytest.raises(SchedulerError, match="s2"):
            jobs({"nodes": ["s1", "s2"]}, start_timeout=3).state()
    finally:
        subprocess.run(["kill", "-CONT", *map(str, stopped)], check=True)
        subprocess.run(["ssh", "s2", "true"], check=True, timeout=TIMEOUT)  # it has taken the calls that waited
