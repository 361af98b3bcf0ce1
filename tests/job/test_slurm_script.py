"""The script for sbatch, the workers' own address, and the command of a batch client."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable

import msgspec
import pytest

from monarch.job.slurm import batch as slurm_batch
from monarch.job.slurm import script as slurm_script
from monarch.job.slurm import worker as slurm_worker
from monarch.job.slurm.script import HetJobComponent, SlurmRequest

REQUEST = SlurmRequest(
    components=(HetJobComponent(3, None),),
    job_name="train_1",
    python_exe="python",
    port=22222,
    scheme="tcp",
    log_dir="/logs",
    ntasks_per_node=1,
    time_limit=None,
    gpus_per_node=None,
    cpus_per_task=None,
    mem=None,
    exclusive=False,
    account=None,
    qos=None,
    slurm_args=(),
    bind_to=None,
    prologue=(),
    container_image=None,
    container_mounts=(),
    srun_args=(),
)


def directives(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]


def test_only_what_is_set_is_asked_for() -> None:
    assert directives(slurm_script.script(REQUEST)) == [
        "--job-name=train_1",
        "--ntasks-per-node=1",
        "--nodes=3",
        "--output=/logs/slurm_%j_train_1.out",
        "--error=/logs/slurm_%j_train_1.err",
        "--no-requeue",
        "--no-kill",
    ]


def test_logs_go_where_they_are_looked_for_whatever_the_folder_is_called() -> None:
    """tests/lab asks a real Slurm."""
    request = msgspec.structs.replace(REQUEST, log_dir='/100% %j/a "b"', job_name="x/y %j_1")
    assert directives(slurm_script.script(request))[0] == '"--job-name=x/y %j_1"'
    assert directives(slurm_script.script(request))[3] == r'"--output=/100%% %%j/a \"b\"/slurm_%j_x_y__j_1.out"'
    assert request.log("7", "err") == '/100% %j/a "b"/slurm_7_x_y__j_1.err'


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"log_dir": "/a\\b"}, r"no logs in '/a\\\\b', which has a backslash in it: give another log_dir"),
        ({"log_dir": "/a\n#SBATCH --uid=0"}, "no line break in --output, got "),
        ({"job_name": "a\nb"}, "no line break in --job-name, got 'a.nb'"),
    ],
)
def test_names_that_sbatch_cannot_be_told(changed: dict[str, str], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        slurm_script.script(msgspec.structs.replace(REQUEST, **changed))


def test_directives_come_in_order_and_the_users_own_last() -> None:
    request = msgspec.structs.replace(
        REQUEST,
        components=(HetJobComponent(3, "gpu"),),
        time_limit="1:00:00",
        gpus_per_node=8,
        cpus_per_task=12,
        mem="64G",
        exclusive=True,
        account="acct",
        qos="high",
        slurm_args=("--constraint=a100", "--requeue"),
    )
    assert directives(slurm_script.script(request))[5:] == [
        "--time=1:00:00",
        "--gpus-per-node=8",
        "--cpus-per-task=12",
        "--mem=64G",
        "--exclusive",
        "--partition=gpu",
        "--account=acct",
        "--qos=high",
        "--no-requeue",
        "--no-kill",
        "--constraint=a100",
        "--requeue",
    ]


def test_a_mesh_a_partition_is_a_heterogeneous_job() -> None:
    request = msgspec.structs.replace(REQUEST, components=(HetJobComponent(2, "gpu"), HetJobComponent(1, "cpu")))
    script = slurm_script.script(request)
    told = directives(script)
    first, second = told[: told.index("hetjob")], told[told.index("hetjob") + 1 :]
    assert "--partition=gpu" in first and "--nodes=2" in first
    assert "--partition=cpu" in second and "--nodes=1" in second
    assert "--het-group=0" in script and "--het-group=1" in script and script.endswith("\nwait\n")
    assert '"$SLURM_JOB_NODELIST_HET_GROUP_1"' in script


def test_prologue_and_container() -> None:
    request = msgspec.structs.replace(
        REQUEST,
        prologue=("module load cuda", "export A='1 2'"),
        container_image="registry#img:1",
        container_mounts=("/data:/data", "/home"),
        srun_args=("--mpi=none",),
        bind_to="0.0.0.0",
    )
    lines = slurm_script.script(request).splitlines()
    assert lines.index("module load cuda") < lines.index("export A='1 2'") < lines.index(slurm_script.UNSET)
    assert "'--container-image=registry#img:1' --container-mounts=/data:/data,/home --mpi=none sh -c" in lines[-1]
    assert "--bind-to 0.0.0.0" in lines[-1]


@pytest.mark.parametrize(
    "components", [(HetJobComponent(2, None),), (HetJobComponent(1, "a"), HetJobComponent(1, "b"))], ids=["one", "two"]
)
@pytest.mark.parametrize("client", [None, ["python", "train.py", "--name", "it's"]], ids=["workers", "batch"])
def test_shells_can_read_it(components: tuple[HetJobComponent, ...], client: list[str] | None) -> None:
    sh = shutil.which("sh")
    assert sh is not None
    script = slurm_script.script(msgspec.structs.replace(REQUEST, components=components), client)
    assert subprocess.run([sh, "-n"], input=script, text=True, capture_output=True, check=True).stderr == ""


def test_a_batch_job_runs_its_client_beside_the_workers() -> None:
    script = slurm_script.script(REQUEST, ["python", "train.py", "--x", "1"])
    last = script.splitlines()[-1]
    assert last.startswith("exec python -u -P -m monarch.job.slurm.batch --workers 'srun ")
    assert last.endswith(" -- python train.py --x 1")


def test_a_worker_that_failed_is_told_with_its_node_and_words() -> None:
    log = f"""srun: cluster configuration lacks support for cpu binding
monarch worker: serving as host tcp://n1:22222 until it is shut down
monarch worker: cannot listen at tcp://n2:22222: Address already in use
{slurm_script.FAILED} n2: status 1
srun: error: n2: task 1: Exited with exit code 1
"""
    told = slurm_script.failure(log)
    assert told is not None
    assert told.startswith("the worker on node n2 has failed: ")
    assert "cannot listen at tcp://n2:22222: Address already in use" in told
    assert slurm_script.failure("monarch worker: serving as host tcp://n1:22222 until it is shut down\n") is None


# --- addresses


def names(**addresses: str) -> Callable[[str], str]:
    return addresses.__getitem__


def test_a_worker_listens_at_its_own_name() -> None:
    resolve = names(n1="10.0.0.1", n2="10.0.0.2")
    assert slurm_worker.address("n1", ["n1", "n2"], 22222, "tcp", None, resolve) == "tcp://n1:22222"
    assert slurm_worker.address("n1", ["n1", "n2"], 22222, "tls", None, resolve) == "tls://n1:22222"


def test_a_loopback_name_is_refused_when_some_host_is_another_machine() -> None:
    with pytest.raises(
        ValueError, match=r"node n1 takes its own name for 127\.0\.1\.1.*/etc/hosts.*bind_to='0\.0\.0\.0'"
    ):
        slurm_worker.address("n1", ["n1", "n2"], 1, "tcp", None, names(n1="127.0.1.1", n2="10.0.0.2"))


def test_a_loopback_name_serves_where_all_hosts_are_this_machine() -> None:
    everything_here = names(n1="127.0.0.11", n2="127.0.0.12")
    assert slurm_worker.address("n1", ["n1", "n2"], 1, "tcp", None, everything_here) == "tcp://n1:1"
    assert slurm_worker.address("n1", ["n1"], 1, "tcp", None, names(n1="127.0.1.1")) == "tcp://n1:1"


@pytest.mark.parametrize(("bind_to", "place"), [("0.0.0.0", "0.0.0.0"), ("::", "[::]")])
def test_bind_to_is_where_it_listens_and_its_name_where_it_is_reached(bind_to: str, place: str) -> None:
    assert slurm_worker.address("n1", ["n2"], 5, "tcp", bind_to, names()) == f"tcp://n1:5@tcp://{place}:5"


# --- the batch client


def test_a_script_gets_an_interpreter_and_a_command_none() -> None:
    assert slurm_batch.client_command("train.py --x '1 2'", "python") == ["python", "train.py", "--x", "1 2"]
    assert slurm_batch.client_command("bash run.sh", "python") == ["bash", "run.sh"]
    with pytest.raises(ValueError, match="client_script is empty"):
        slurm_batch.client_command(" ", "python")


def test_the_batch_runner_ends_with_the_clients_status_and_ends_the_workers() -> None:
    sh = shutil.which("sh")
    assert sh is not None
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "monarch.job.slurm.batch", "--workers", "sleep 1000", "--"),
            *(sh, "-c", 'echo "$MONARCH_BATCH_JOB $PPID"; exit 7'),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout.split()[0]) == (7, "1"), ran.stderr
