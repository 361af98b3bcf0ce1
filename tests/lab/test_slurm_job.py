"""SlurmJob on a real Slurm."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import SupervisionError
from monarch.job import SchedulerError, SlurmJob
from monarch.tools.certs import make_certificates
from tests.lab.actors import TIMEOUT, names, spawn
from tests.lab.site import until
from tests.lab.slurm import SlurmLab
from tests.support.faults import Faults

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("folder")]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def jobs(slurm_lab: SlurmLab) -> Iterator[Any]:
    """Makes jobs that this test's Slurm runs; those that it has not killed are killed at its end."""
    made: list[SlurmJob] = []

    def make(meshes: dict[str, int], **arguments: Any) -> SlurmJob:
        job = SlurmJob(meshes, **({"python_exe": sys.executable} | arguments))
        made.append(job)
        return job

    yield make
    for job in made:
        job.kill()


class Program:
    """A program that uses the job, in a process of its own."""

    def __init__(self, folder: Path, source: str) -> None:
        self.path = folder / "program.py"
        self.path.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{source}")
        self.process = subprocess.Popen(
            [sys.executable, str(self.path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder
        )

    def says(self, words: str) -> str:
        """Everything up to the line that has these words."""
        assert self.process.stdout is not None
        said = ""
        for line in self.process.stdout:
            said += line
            if words in line:
                return said
        pytest.fail(f"it ended with status {self.process.wait()} and never said {words!r}:\n{said}")

    def rest(self) -> str:
        return self.process.communicate(timeout=TIMEOUT)[0]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def program(folder: Path, slurm_lab: SlurmLab) -> Iterator[Any]:
    started: list[Program] = []

    def start(source: str) -> Program:
        started.append(Program(folder, source))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_meshes_get_their_nodes_and_kill_leaves_nothing(jobs: Any, slurm_lab: SlurmLab, folder: Path) -> None:
    job = jobs({"trainers": 3, "actors": 1}, prologue=["export FLAVOUR=vanilla"])
    state = job.state()
    assert names(state.trainers) == ["n1", "n2", "n3"] and names(state.actors) == ["n4"]
    assert set(spawn(state.trainers).variable.call("FLAVOUR").get(TIMEOUT).values()) == {"vanilla"}

    secret = job._launch.secret
    shown = slurm_lab.run("scontrol", "show", "job", job._job_id) + str(slurm_lab.processes())
    assert "monarch worker" in shown and secret not in shown

    job.kill()
    assert (slurm_lab.queue(), slurm_lab.processes()) == ([], {})
    assert not list(folder.glob("slurm_*")) and not job.active


def test_a_mesh_in_each_partition(jobs: Any, slurm_lab: SlurmLab) -> None:
    state = jobs({"first": 1, "second": 2}, partition={"first": "lab", "second": slurm_lab.half_partition}).state()
    assert names(state.second) == ["n3", "n4"]
    assert names(state.first) == ["n1"]


def test_a_node_has_one_worker_however_many_tasks_it_is_for(jobs: Any, slurm_lab: SlurmLab) -> None:
    job = jobs({"nodes": 2}, ntasks_per_node=2, slurm_args=["--mem-per-cpu=50"])
    assert names(job.state().nodes) == ["n1", "n2"]
    workers = [line for line in slurm_lab.processes()["n2"] if "monarch worker --address" in line]
    assert len(workers) == 1


def test_hosts_that_speak_tls(jobs: Any, slurm_lab: SlurmLab, tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certs", ["n1", "n2"], 1)
    job = jobs({"nodes": 2}).use_tls(str(made.ca), str(made.certificate), str(made.private_key))
    assert names(job.state().nodes) == ["n1", "n2"]


def test_the_next_run_finds_the_hosts_of_one_that_was_killed(
    jobs: Any, program: Any, slurm_lab: SlurmLab, faults: Faults
) -> None:
    first = program(f"""
from monarch.job import SlurmJob
from monarch.tools.certs import make_certificates
from tests.lab.actors import names
job = SlurmJob({{"nodes": 2}}, python_exe={sys.executable!r})
print("names", names(job.state().nodes), flush=True)
input()
""")
    assert "['n1', 'n2']" in first.says("names")
    [queued] = slurm_lab.queue()
    first.process.kill()
    first.process.wait()
    job = jobs({"nodes": 2})
    assert names(job.state().nodes) == ["n1", "n2"]
    assert slurm_lab.queue() == [queued]
    other = jobs({"nodes": 1})  # another job in the same file takes the first one's place: what runs there has failed
    assert len(names(other.state().nodes)) == 1
    assert queued not in slurm_lab.queue()


def test_only_the_first_host_can_be_reached(program: Any, slurm_lab: SlurmLab) -> None:
    source = f"""
from monarch.job import SlurmJob
from monarch.tools.certs import make_certificates
from tests.lab.actors import names
job = SlurmJob({{"nodes": 3}}, python_exe={sys.executable!r}, out_of_cluster=True)
try:
    print("names", names(job.state().nodes), flush=True)
finally:
    job.kill()
"""
    ran = program(source)
    assert "names ['n1', 'n2', 'n3']" in ran.rest()
    assert ran.process.returncode == 0


@pytest.mark.parametrize(
    "name", ["a b", "100% %j %%", 'it\'s "x"', "#1 a#2", "--x=y --error=/z", "tab\tü$(id);"], ids=range(6)
)
def test_logs_are_where_they_are_looked_for(jobs: Any, folder: Path, name: str) -> None:
    """Finds them whatever the folder and the job are called."""
    job = jobs({"nodes": 1}, log_dir=name, job_name=name)
    job.state(cached_path=None)
    for stream, path in job._log_files().items():
        assert Path(path).parent == folder / name
        until(lambda path=path: Path(path).exists(), f"the log of {stream}")
    until(lambda: "serving as host" in Path(job._log_files()["stderr"]).read_text(), "what the worker says")
    assert len(list((folder / name).iterdir())) == 2


def test_a_batch_job_runs_its_client_and_ends_with_it(jobs: Any, slurm_lab: SlurmLab, folder: Path) -> None:
    (folder / "client.py").write_text(f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from monarch.job import SlurmJob
from monarch.tools.certs import make_certificates
from tests.lab.actors import names
job = SlurmJob({{"nodes": 2}}, python_exe={sys.executable!r}, log_dir="logs")
print("names", names(job.state().nodes), sys.argv[1:], flush=True)
sys.exit(3)
""")
    job = jobs({"nodes": 2}, log_dir="logs")
    job.apply(client_script="client.py --x 1")
    queued = job._job_id
    until(lambda: not slurm_lab.queue(), "the end of the batch job")
    [out] = (folder / "logs").glob("*.out")
    errors = out.with_suffix(".err").read_text()
    assert "names ['n1', 'n2'] ['--x', '1']" in out.read_text(), errors
    assert "ExitCode=3:0" in slurm_lab.run("scontrol", "show", "job", queued)


def test_an_allocation_that_is_there_is_used_and_left_to_its_owner(slurm_lab: SlurmLab, folder: Path) -> None:
    (folder / "program.py").write_text(f"""
import subprocess, sys
sys.path.insert(0, {str(ROOT)!r})
from monarch.job import SlurmJob
from monarch.tools.certs import make_certificates
from tests.lab.actors import names
job = SlurmJob({{"one": 1, "two": 2}}, python_exe={sys.executable!r}, allocation="current")
state = job.state()
print("names", names(state.one), names(state.two), flush=True)
again = SlurmJob({{"one": 1, "two": 2}}, python_exe={sys.executable!r}, allocation="current")
print("again", names(again.state().two), flush=True)
again.kill()
print("queue", subprocess.run(["squeue", "-h", "-o", "%T"], capture_output=True, text=True).stdout, flush=True)
print("steps", subprocess.run(["squeue", "-h", "-s"], capture_output=True, text=True).stdout, "end", flush=True)
""")
    ran = subprocess.run(
        ["salloc", "-N4", sys.executable, "program.py"], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert "names ['n1'] ['n2', 'n3']" in ran.stdout, ran.stderr
    assert "again ['n2', 'n3']" in ran.stdout, ran.stderr
    assert "queue RUNNING" in ran.stdout
    assert "monarch_" not in ran.stdout.partition("steps")[2]


# --- what people get wrong


def test_no_such_partition(jobs: Any, slurm_lab: SlurmLab) -> None:
    with pytest.raises(SchedulerError, match=r"Failed to submit SLURM job: .*invalid partition specified: nope"):
        jobs({"nodes": 1}, partition="nope").state()


WAITED = r"Timeout waiting for SLURM job \d+ to start.*reason {}: the partition"
REFUSED = "Failed to submit SLURM job: .*Requested node configuration is not available"  # by newer ones


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"meshes": {"nodes": 9}}, WAITED.format("Partition(NodeLimit|Config)") + "|" + REFUSED),
        ({"meshes": {"nodes": 1}, "partition": "down"}, WAITED.format("PartitionDown")),
    ],
    ids=["too-many", "down"],
)
def test_why_a_job_does_not_start_is_told(jobs: Any, slurm_lab: SlurmLab, arguments: dict[str, Any], said: str) -> None:
    job = jobs(**arguments, job_start_timeout=1)
    with pytest.raises(SchedulerError, match=said):
        job.state()
    assert slurm_lab.queue() == []
    assert not job.active


WAITS = """
from monarch.job import SlurmJob
SlurmJob({"nodes": 1}, partition="down").state()
"""


def test_ctrl_c_while_waiting_leaves_nothing_in_the_queue(program: Any, slurm_lab: SlurmLab) -> None:
    waits = program(WAITS)
    waits.says("waits for its hosts: Slurm job")
    assert len(slurm_lab.queue()) == 1
    waits.process.send_signal(signal.SIGINT)
    assert "interrupted: SlurmJob was cancelled" in waits.rest()
    assert slurm_lab.queue() == []


def test_a_client_that_is_killed_while_waiting_leaves_nothing_in_the_queue(program: Any, slurm_lab: SlurmLab) -> None:
    waits = program(WAITS)
    waits.says("waits for its hosts: Slurm job")
    assert len(slurm_lab.queue()) == 1
    waits.process.kill()
    until(lambda: slurm_lab.queue() == [], "an empty queue")


def test_an_interpreter_that_is_not_there(jobs: Any) -> None:
    with pytest.raises(SchedulerError, match=r"(?s)/nowhere/python.*(not found|No such file)"):
        jobs({"nodes": 2}, python_exe="/nowhere/python").state()


def test_a_port_that_is_taken_names_the_node(jobs: Any, slurm_lab: SlurmLab) -> None:
    node = slurm_lab.node("n2")
    source = f"import socket; s = socket.create_server(({node.address!r}, 22222)); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as taker:
        assert taker.stdout is not None and taker.stdout.readline()
        with pytest.raises(
            SchedulerError, match=r"the worker on node n2 has failed: .*tcp://n2:22222: Address already in use"
        ):
            jobs({"nodes": 3}).state()
        taker.communicate()


# --- what happens to jobs


def begin(state: Any, folder: Path) -> Any:
    """A call to every host that never returns."""
    nodes = spawn(state.nodes)
    call = nodes.wait_for_ever.call(str(folder))
    until(lambda: len(list(folder.glob("begun-*"))) == len(nodes), "the call on every host")
    return call


def test_a_job_that_is_cancelled_from_outside_is_told(jobs: Any, slurm_lab: SlurmLab, folder: Path) -> None:
    job = jobs({"nodes": 2})
    call = begin(job.state(), folder)
    asked = time.monotonic()
    slurm_lab.run("scancel", job._job_id)
    with pytest.raises(SupervisionError, match=r"n1|n2"):
        call.get(TIMEOUT)
    print(f"known after {time.monotonic() - asked:.1f} s")
    assert not job.can_run(job)


def test_a_node_that_is_lost_is_named_and_the_others_go_on(jobs: Any, slurm_lab: SlurmLab, folder: Path) -> None:
    job = jobs({"nodes": 3})
    state = job.state()
    call = begin(state, folder)
    lost = time.monotonic()
    slurm_lab.node("n2").kill_processes()
    with pytest.raises(SupervisionError, match="n2"):
        call.get(TIMEOUT)
    print(f"known after {time.monotonic() - lost:.1f} s")
    assert names(state.nodes.slice(hosts=slice(0, 1))) == ["n1"]
    assert names(state.nodes.slice(hosts=slice(2, 3))) == ["n3"]


@pytest.mark.slow
def test_a_node_whose_slurmd_has_died_goes_on_working(jobs: Any, slurm_lab: SlurmLab) -> None:
    """Slurm takes the node for down, after a while; the job, its worker and the calls to it go on."""
    job = jobs({"nodes": 2})
    nodes = spawn(job.state().nodes)
    slurm_lab.node("n2").kill_processes(lambda line: "slurmd -D" in line)
    until(lambda: slurm_lab.states()["n2"].startswith("down"), "that n2 counts as down", 240)
    assert list(nodes.name.call().get(TIMEOUT).values()) == ["n1", "n2"]
    assert "JobState=RUNNING" in slurm_lab.run("scontrol", "show", "job", job._job_id)
    job.kill()
    until(lambda: not slurm_lab.processes(), "the end of the workers, which Slurm cannot see to there")


@pytest.mark.slow
def test_a_time_limit_that_ends_is_told(
    jobs: Any, slurm_lab: SlurmLab, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm's shortest limit is a minute, and it looks every half a minute."""
    job = jobs({"nodes": 2}, time_limit="1")
    call = begin(job.state(), folder)
    with pytest.raises(SupervisionError, match=r"n1|n2"):
        call.get(240)
    until(lambda: "TIMEOUT" in capsys.readouterr().err, "the line that says TIMEOUT")
