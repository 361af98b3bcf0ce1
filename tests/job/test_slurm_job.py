"""SlurmJob before and beside Slurm: its arguments, and commands that fail. The real thing is in tests/lab."""

from __future__ import annotations

import os
import pickle
import re
import stat
import traceback
from pathlib import Path
from typing import Any

import pytest

from monarch.job import SlurmJob
from monarch.job.scheduled import Ended, Ready, SchedulerError, Waiting
from monarch.job.slurm import slurm_commands
from monarch.job.slurm.script import HetJobComponent
from monarch.job.worker_launch import WorkerLaunch


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"bind_to": "node1"}, ValueError, "bind_to is an IP address"),
        ({"slurm_args": ["constraint=a100"]}, ValueError, "begins with '-'; got 'constraint=a100'"),
        ({"slurm_args": "--exclusive"}, TypeError, "sequence of options"),
        ({"slurm_args": ["--export=NONE"]}, ValueError, "keep the job's secret from its workers"),
        ({"srun_args": ["mpi"]}, ValueError, "srun_args"),
        ({"monarch_port": 0}, ValueError, "monarch_port"),
        ({"meshes": {"a": 0}}, ValueError, "mesh 'a' has one node or more, got 0"),
        ({"meshes": {"a": True}}, ValueError, "one node or more"),
        ({"meshes": {"not a name": 1}}, ValueError, "not a name of a mesh"),
        ({"partition": {"b": "gpu"}}, ValueError, "partition names b, and the meshes are a"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        SlurmJob(**{"meshes": {"a": 1}, **arguments})


def test_meshes_in_one_partition_are_one_order_and_in_several_one_each() -> None:
    job = SlurmJob({"a": 2}, partition="p")
    job.add_mesh("b", 1)
    assert job._components_of() == (HetJobComponent(3, "p"),)
    job.add_mesh("c", 4, partition="q")
    assert job._components_of() == (HetJobComponent(2, "p"), HetJobComponent(1, "p"), HetJobComponent(4, "q"))
    assert SlurmJob({"a": 1, "b": 1}, partition={"b": "q"})._components_of() == (
        HetJobComponent(1, None),
        HetJobComponent(1, "q"),
    )


def test_what_makes_two_jobs_the_same() -> None:
    job = SlurmJob({"a": 2}, partition="p", time_limit="1:00:00")
    assert job._same(SlurmJob({"a": 2}, partition="p", time_limit="1:00:00", log_dir="/elsewhere", exclusive=False))
    assert not job._same(SlurmJob({"a": 2}, partition="p"))
    assert not job._same(SlurmJob({"a": 3}, partition="p", time_limit="1:00:00"))


def test_sharing_nodes_needs_a_package_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "clusterscope", None)
    with pytest.raises(RuntimeError, match="pip install clusterscope"):
        SlurmJob({"a": 1}).share_node(1, 1, "gpu")
    with pytest.raises(RuntimeError, match="pip install clusterscope"):
        SlurmJob({"a": 1}, exclusive=False, partition="gpu", gpus_per_node=4)


def test_a_share_of_a_node_is_computed_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scope:
        @staticmethod
        def job_gen_task_slurm(**wanted: Any) -> dict[str, Any]:
            assert wanted == {"partition": "gpu", "gpus_per_task": 2, "tasks_per_node": 2}
            return {"cpus_per_task": 24, "memory": "200G"}

    monkeypatch.setitem(__import__("sys").modules, "clusterscope", Scope)
    job = SlurmJob({"a": 1})
    job.share_node(2, 2, "gpu")
    request = job._request(WorkerLaunch("s" * 64))
    assert (request.cpus_per_task, request.mem, request.exclusive) == (24, "200G", False)
    assert request.components == (HetJobComponent(1, "gpu"),)
    assert request.ntasks_per_node == 2


# --- commands, which are scripts here


class Commands:
    """Programs of these names on PATH, and what they were given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def given(self, name: str) -> str:
        return (self.folder / f"{name}.given").read_text()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    commands = Commands(folder)
    commands.add("scontrol", 'echo "$3" | tr , "\\n"')
    commands.add("scancel", f'echo "$@" >>{folder}/scancel.given')
    return commands


def submitted(slurm: Commands, **arguments: Any) -> SlurmJob:
    slurm.add("sbatch", f"cat >{slurm.folder}/sbatch.given; env >{slurm.folder}/env.given; echo Submitted batch job 7")
    job = SlurmJob({"a": 1, "b": 1}, **arguments)
    job.apply()
    return job


def test_the_secret_is_in_sbatchs_environment_and_nowhere_else(slurm: Commands) -> None:
    job = submitted(slurm)
    assert job._launch is not None
    secret = job._launch.secret
    assert f"MONARCH_SECRET={secret}" in slurm.given("env")
    assert secret not in slurm.given("sbatch")


def test_no_sbatch_is_a_sentence(slurm: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(slurm.folder))
    with pytest.raises(SchedulerError, match=r"there is no sbatch on PATH.*login node"):
        SlurmJob({"a": 1}).apply()


def test_what_sbatch_says_is_told(slurm: Commands) -> None:
    slurm.add("sbatch", "echo 'sbatch: error: invalid partition specified: nope' >&2; exit 1")
    with pytest.raises(
        RuntimeError, match="Failed to submit SLURM job: sbatch: error: invalid partition specified: nope"
    ):
        SlurmJob({"a": 1}, partition="nope").apply()
    slurm.add("sbatch", "echo hello")
    with pytest.raises(RuntimeError, match="Failed to parse job ID from sbatch output: 'hello'"):
        SlurmJob({"a": 1}).apply()


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        (
            "sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
            "sbatch: error: fetch_config: DNS SRV lookup failed\n"
            "sbatch: error: _establish_config_source: failed to fetch config\n"
            "sbatch: fatal: Could not establish a configuration source",
            "not set up: .*login node.*SLURM_CONF.*ProcessJob",
        ),
        (
            "sbatch: error: s_p_parse_file: cannot stat file /x: No such file or directory, retrying in 1sec up to 60sec\n"
            "sbatch: error: ClusterName needs to be specified\n"
            "sbatch: fatal: Unable to process configuration file",
            "not set up: .*SLURM_CONF",
        ),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            "controller is not to be reached from here: `scontrol ping`",
        ),
    ],
    ids=["no-configuration", "no-such-file", "no-controller"],
)
def test_a_slurm_that_is_not_set_up_is_one_sentence(slurm: Commands, said: str, advice: str) -> None:
    slurm.add("sbatch", f"cat >&2 <<'END'\n{said}\nEND\nexit 1")
    with pytest.raises(SchedulerError) as caught:
        SlurmJob({"a": 1}).apply()
    last = said.splitlines()[-1]
    assert re.fullmatch(rf"Failed to submit SLURM job: {re.escape(last)}\. .*{advice}.*", str(caught.value))
    shown = traceback.format_exception(caught.value)
    assert sum("monarch/job" in line for line in "".join(shown).splitlines()) == 2, "where it was called, and no more"


def test_a_command_that_hangs_is_ended(slurm: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_commands, "SECONDS", 0.2)
    slurm.add("squeue", "exec sleep 1000")
    with pytest.raises(SchedulerError, match="squeue did not answer within"):
        slurm_commands.look("7")


def test_looks_at_a_job(slurm: Commands) -> None:
    job = submitted(slurm)
    slurm.add("squeue", "echo '7|PENDING|Priority|N/A|'")
    waiting = job._poll()
    assert isinstance(waiting, Waiting)
    assert "Slurm job 7 is PENDING, reason Priority: jobs of higher priority are before it" in waiting.why
    slurm.add("squeue", "echo '7|RUNNING|None|N/A|n1,n2'")
    assert job._poll() == Ready({"a": ["tcp://n1:22222"], "b": ["tcp://n2:22222"]})
    slurm.add("squeue", "echo '7|RUNNING|None|N/A|n1'")
    assert isinstance(fewer := job._poll(), Ended)
    assert "Expected 2 nodes but got 1. Partial allocation not supported." in fewer.why
    slurm.add("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert isinstance(gone := job._poll(), Ended)
    assert "SLURM job 7 not found in queue" in gone.why
    slurm.add("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(
        SchedulerError, match="squeue failed: slurm_load_jobs error: Unable to contact slurm controller"
    ):
        job._poll()


def test_a_controller_that_is_begun_anew_costs_no_place_in_the_queue(slurm: Commands) -> None:
    """squeue fails once, while the job waits; then it has its nodes."""
    job = submitted(slurm)
    down = "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"
    slurm.add(
        "squeue",
        f"test -e {slurm.folder}/up || {{ touch {slurm.folder}/up; {down}; }}; echo '7|RUNNING|None|N/A|n1,n2'",
    )
    assert job._await_hosts().workers["a"] == ["tcp://n1:22222"]


def test_what_describes_another_job_is_not_handed_on(slurm: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "3")
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "5")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("SBATCH_EXPORT", "NONE")
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")
    submitted(slurm)
    given = slurm.given("env").splitlines()
    assert "SLURM_CONF=/etc/slurm.conf" in given and "SBATCH_ACCOUNT=mine" in given
    assert not [line for line in given if line.startswith(("SLURM_JOB_ID", "SLURM_MEM", "SBATCH_EXPORT"))]


def test_the_place_in_the_queue_is_told(slurm: Commands) -> None:
    job = submitted(slurm)
    slurm.add("squeue", 'case "$*" in *PENDING*) printf "4\\n5\\n7\\n";; *) echo "7|PENDING|Resources|N/A|";; esac')
    assert isinstance(waiting := job._poll(), Waiting)
    assert waiting.why.endswith("; 2 jobs before it")


def test_a_squeue_with_a_format_of_its_own_is_asked_for_json(slurm: Commands) -> None:
    job = submitted(slurm)
    nodes = '{"nodes":{"allocation":[{"name":"n1"},{"name":"n2"}]}}'
    listed = '{"jobs":[{"job_id":7,"job_state":["RUNNING"],"job_resources":' + nodes + "}]}"
    slurm.add("squeue", f"case \"$*\" in *--json*) echo '{listed}';; *) echo 7 RUNNING;; esac")
    assert isinstance(job._poll(), Ready)


def test_a_failed_workers_words_are_told_from_its_log(slurm: Commands) -> None:
    job = submitted(slurm)
    slurm.add("squeue", "echo '7|RUNNING|None|N/A|n1,n2'")
    log = Path(job._logs[-1])
    log.write_text(
        "monarch worker: Address already in use\nmonarch: the worker could not go on, on node n2: status 1\n"
    )
    assert isinstance(failed := job._poll(), Ended)
    assert "the worker on node n2 has failed: monarch worker: Address already in use (Slurm job 7, " in failed.why
    slurm.add("squeue", "echo '7|FAILED|NonZeroExitCode|N/A|n1,n2'")
    assert isinstance(ended := job._poll(), Ended)
    assert ended.why.startswith("Slurm job 7 has ended: FAILED, reason NonZeroExitCode")
    assert "Address already in use" in ended.why


def test_a_kept_job_has_no_process_of_ours_in_it_and_its_id(slurm: Commands) -> None:
    job = submitted(slurm)
    assert pickle.loads(job.dumps())._job_id == "7"
    slurm.add("squeue", "echo '7|CANCELLED|None|N/A|'")
    job.kill()
    assert slurm.given("scancel") == "7\n"
    assert not job.active


def test_an_allocation_has_to_be_there(slurm: Commands) -> None:
    with pytest.raises(SchedulerError, match="SLURM_JOB_ID is not set: run this inside salloc or sbatch"):
        SlurmJob({"a": 1}, allocation="current").apply()
    slurm.add("squeue", "echo '9|RUNNING|None|N/A|n1'")
    with pytest.raises(SchedulerError, match=r"Expected 2 nodes but got 1\. Slurm job 9 has only n1"):
        SlurmJob({"a": 2}, allocation=9).apply()
    slurm.add("squeue", "echo '9|PENDING|Priority|N/A|'")
    with pytest.raises(SchedulerError, match="Slurm job 9 is not running: PENDING"):
        SlurmJob({"a": 2}, allocation="9").apply()


def test_the_current_directory_is_where_logs_go(slurm: Commands) -> None:
    job = submitted(slurm, log_dir="logs/deep")
    assert Path("logs/deep").is_dir()
    assert job._logs[-1] == f"{os.getcwd()}/logs/deep/slurm_7_monarch_job_{os.getpid()}.err"
