"""`monarch run`: programs on every rank, as torchrun runs them."""

from __future__ import annotations

import argparse
import io
import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from monarch._mesh.start.threads import processors, share
from monarch.actor import attach_to_workers
from monarch.job.torchrun import arguments, run
from tests.support.command_line import TIMEOUT, CommandLine
from tests.support.faults import Faults
from tests.support.hosts import TRUST, Hosts
from tests.support.processes import Watch
from tests.support.terminal import Terminal
from tests.support.tiers import full, slow

pytestmark = pytest.mark.procs


def program(monarch: CommandLine, text: str) -> str:
    (monarch.folder / "train.py").write_text(f"import os, sys, time\nrank = int(os.environ['RANK'])\n{text}")
    return "train.py"


def test_every_rank_runs_and_the_first_to_fail_is_told(monarch: CommandLine) -> None:
    script = program(
        monarch,
        """
print("rank", rank, "of", os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
if "fail" in sys.argv:
    if rank == 1:
        raise ValueError("bad luck")
    time.sleep(1000)
""",
    )
    done = monarch("run", "--nproc-per-node", "3", script, "--x", "1")
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 3 ['--x', '1']" for rank in range(3)]
    done = monarch("run", "--nproc-per-node", "3", script, "fail", status=1)
    told = done.stderr[done.stderr.index("monarch run: train.py") :]
    assert re.match(r"monarch run: train.py: rank 1 ended with status 1 \(local rank 1 on \S+, pid \d+\)\n", told)
    assert "    ValueError: bad luck\n  ended because of it: ranks 0, 2\n" in told


@full
def test_restarts_and_files(monarch: CommandLine) -> None:
    script = program(
        monarch,
        """
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("attempt", attempt, flush=True)
if attempt < 2 and rank == 0:
    sys.exit(40 + attempt)
if attempt < 2:
    time.sleep(1000)
""",
    )
    words = ["--nproc-per-node", "2", "--tee", "1", "--redirects", "2", "--log-dir", "logs", "--rdzv-id", "my"]
    done = monarch("run", "--max-restarts", "2", *words, script)
    assert "rank 0 ended with status 40" in done.stderr and "rank 0 ended with status 41" in done.stderr
    assert "all ranks begin anew: restart 2 of 2" in done.stderr
    assert {"[default0]:attempt 2", "[default1]:attempt 2"} <= set(done.stdout.splitlines())
    [folder] = (monarch.folder / "logs").iterdir()
    assert folder.name.startswith("my_")
    assert (folder / "attempt_2" / "1" / "stdout.log").read_text() == "attempt 2\n"
    assert len(list(folder.glob("*/*/stderr.log"))) == 6
    done = monarch("run", "--max-restarts", "1", *words, script, status=41)
    assert "attempt 2 of 2 (--max-restarts 1)" in done.stderr


@full
def test_signals_and_statuses(monarch: CommandLine, watch: type[Watch]) -> None:
    script = program(monarch, "print(os.getpid(), flush=True)\ntime.sleep(1000)")
    for number in (signal.SIGTERM, signal.SIGINT):
        running = monarch.start("run", "--nproc-per-node", "2", script)
        assert running.stdout is not None
        left = watch([int(running.stdout.readline()) for _ in range(2)])
        running.send_signal(number)
        _, err = running.communicate(timeout=TIMEOUT)
        assert running.returncode == 128 + number and f"{number.name}: all ranks are ended" in err
        assert left.survivors(TIMEOUT) == {}
    script = program(monarch, "os.kill(os.getpid(), 11)")
    assert "rank 0 was killed by SIGSEGV (11)" in monarch("run", script, status=139).stderr
    # Who does not go is killed.
    script = program(
        monarch,
        "import signal; signal.signal(15, signal.SIG_IGN)\nopen(f'ready{rank}', 'w')\n"
        "while not os.path.exists('ready0'): time.sleep(0.01)\nsys.exit(9) if rank else time.sleep(1000)",
    )
    done = monarch("run", "--nproc-per-node", "2", "--shutdown-timeout", "0.5", script, status=9)
    assert "not ended within 0.5 s, killed: ranks 0" in done.stderr
    # It is said who does not, and what a second Ctrl-C does.
    script = program(
        monarch, "import signal; signal.signal(2, signal.SIG_IGN)\nprint(rank, flush=True)\ntime.sleep(1000)"
    )
    running = monarch.start("run", "--nproc-per-node", "2", script)
    assert running.stdout is not None and running.stderr is not None
    assert sorted(running.stdout.readline() for _ in range(2)) == ["0\n", "1\n"]
    running.send_signal(signal.SIGINT)
    said = next(line for line in running.stderr if "waits for" in line)
    assert "waits for ranks 0-1 to end: they clean up, or are in native code" in said
    assert said.endswith("killed 30 s after the signal (--shutdown-timeout); Ctrl-C again kills them now\n")
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=TIMEOUT)
    assert running.returncode == 130
    # And a client that is killed takes all with it.
    script = program(monarch, "print(os.getpid(), flush=True)\ntime.sleep(1000)")
    running = monarch.start("run", script)
    assert running.stdout is not None
    left = watch([int(running.stdout.readline())])
    running.kill()
    assert left.survivors(TIMEOUT) == {}
    running.communicate(timeout=TIMEOUT)


@full
def test_a_rank_that_is_stopped_for_suspect_timeout_has_failed(monarch: CommandLine) -> None:
    script = program(
        monarch,
        """
if rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), 19)
if rank == 1 or "wait" in sys.argv:
    sys.exit(0)
time.sleep(0 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1" else 1000)
""",
    )
    words = ["--nproc-per-node", "2", "--suspect-timeout", "200ms"]
    done = monarch("run", *words, script, status=137)
    assert re.search(
        r"rank 1 \(pid (\d+)\) is stopped by SIGSTOP \(19\): it is killed and has failed unless it goes on within 0.2 s "
        r"\(--suspect-timeout\); `kill -CONT \1` on \S+ lets it\n",
        done.stderr,
    )
    assert (
        "rank 1 was stopped by SIGSTOP (19) for 0.2 s and was killed (--suspect-timeout) (local rank 1" in done.stderr
    )
    assert "  ended because of it: rank 0\n" in done.stderr
    assert "restart 1 of 1" in monarch("run", "--max-restarts", "1", *words, script).stderr


@full
def test_on_a_job(monarch: CommandLine) -> None:
    script = program(monarch, "print('rank', rank, os.environ['GROUP_RANK'], os.environ['LOCAL_RANK'], flush=True)")
    done = monarch("run", "--job", "jobs.job", "--nproc-per-node", "2", script)
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} {rank // 2} {rank % 2}" for rank in range(4)]
    done = monarch("run", "--job", "jobs.job", "--nnodes", "1", "-m", "train")
    assert done.stdout == "rank 0 0 0\n" and "Connecting to cached job" in done.stderr
    assert done.stderr.endswith("the hosts of job jobs.job stay; monarch kill job_jobs.job ends them\n")
    assert "in others: `monarch kill job_jobs.job`" in monarch("kill", status=66).stderr
    said = monarch("run", "--job", "jobs.job", "--nnodes", "3", script, status=1).stderr
    assert "--nnodes asks for 3 host(s) or more, and job jobs.job has 2" in said
    assert monarch("kill", "job_jobs.job").stdout == "Killed context 'job_jobs.job'\n"
    said = monarch("run", "--job", "nope", script, status=66).stderr
    assert "'nope' is neither MODULE.ATTRIBUTE nor a job of this project" in said


@full
def test_a_lost_host_is_done_without(monarch: CommandLine) -> None:
    script = program(
        monarch,
        """
print("begun", rank, os.environ["WORLD_SIZE"], os.getpid(), flush=True)
if os.environ["WORLD_SIZE"] == "2":
    time.sleep(1000)
""",
    )
    running = monarch.start("run", "--job", "jobs.job", "--nnodes", "1:2", "--max-restarts", "1", script)
    try:
        assert running.stdout is not None and running.stderr is not None
        begun = [running.stdout.readline().split() for _ in range(2)]
        assert sorted(line[:3] for line in begun) == [["begun", "0", "2"], ["begun", "1", "2"]]
        os.killpg(monarch.worker_pid("trainers_1"), signal.SIGKILL)
        out, err = running.communicate(timeout=TIMEOUT)
        assert running.returncode == 0, err
        assert out.split()[:3] == ["begun", "0", "1"]
        assert "rank 1 was lost" in err and "a host is gone, and the run goes on without it" in err
    finally:
        running.kill()
        running.communicate(timeout=TIMEOUT)


@full
def test_a_lost_host_is_replaced_when_too_few_are_left(hosts: Hosts, tmp_path: Path, faults: Faults) -> None:
    """Takes a spare: as many hosts as --nnodes says."""
    workers = [hosts.start() for _ in range(3)]
    mesh = attach_to_workers(workers=[w.address for w in workers[:2]], spares=[workers[2].address], ca=TRUST)
    mesh.initialized.get(TIMEOUT)
    os.mkfifo(tmp_path / "begun")
    script = tmp_path / "train.py"
    script.write_text(
        f"""
import os, time
attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
if attempt == "0":
    if rank == "1":
        open("{tmp_path}/begun", "w").close()
    time.sleep(1000)
open("{tmp_path}/done" + rank, "w").write(os.environ["WORLD_SIZE"])
"""
    )

    def kill_when_begun() -> None:
        (tmp_path / "begun").read_text()
        os.kill(workers[1].agent, signal.SIGKILL)

    killer = threading.Thread(target=kill_when_begun)
    killer.start()
    parser = argparse.ArgumentParser()
    arguments.add_arguments(parser)
    words = ["--nnodes", "2", "--max-restarts", "1", "--shutdown-timeout", "5", str(script)]
    out = io.StringIO()
    status = run.run(mesh, arguments.options(parser.parse_args(words), {}), "the test", out=out)
    killer.join()
    assert status == 0, out.getvalue()
    assert [(tmp_path / f"done{rank}").read_text() for rank in range(2)] == ["2", "2"]
    assert "too few hosts may be left: those that have died are replaced" in out.getvalue()
    mesh.shutdown().get(TIMEOUT)
    faults.rest()


@full
def test_threads_of_a_single_rank_are_left_alone(monarch: CommandLine) -> None:
    """The libraries take what they like, as under torchrun; several ranks share the processors among themselves."""
    script = program(monarch, "print(os.environ.get('OMP_NUM_THREADS'), flush=True)")
    monarch.environment.pop("OMP_NUM_THREADS", None)
    assert monarch("run", script).stdout == "None\n"
    assert monarch("run", script, env={"OMP_NUM_THREADS": "7"}).stdout == "7\n"
    assert monarch("run", "--nproc-per-node", "2", script).stdout == f"{share(processors(), 2)}\n" * 2


@full
def test_rank_0_reads_standard_input(monarch: CommandLine) -> None:
    """The first of several ranks does, as far as it likes: what it leaves is there for who comes next, as with torchrun."""
    script = program(monarch, "print(rank, input() if rank == 0 else sys.stdin.read(), sys.stdin.isatty(), flush=True)")
    done = monarch("run", "--nproc-per-node", "2", script, text="one\ntwo\n")
    assert sorted(done.stdout.splitlines()) == ["0 one False", "1  False"]
    (monarch.folder / "lines").write_text("first\nsecond\n")
    script = program(monarch, "print(os.read(0, 6), flush=True)")
    with open(monarch.folder / "lines", "rb") as lines:
        command = [*monarch.command, "run", script]
        for said in ("b'first\\n'\n", "b'second'\n"):
            done = subprocess.run(
                command,
                cwd=monarch.folder,
                env=monarch.environment,
                stdin=lines,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
            assert done.stdout == said, done.stderr


@full
def test_ranks_have_the_terminal_of_the_command(monarch: CommandLine) -> None:
    """A debugger in rank 0 can be talked to, and all ranks see a terminal; afterwards it is as it was."""
    script = program(
        monarch,
        """
# In one write each: what has begun and is not ended for a while is shown, as a prompt is.
sys.stdout.write(f"{rank} {sys.stdout.isatty()} {sys.stderr.isatty()} {os.get_terminal_size(1).columns}\\n")
secret = rank + 40
if rank == 0:
    breakpoint()
sys.stdout.write(f"over {rank}\\n")
""",
    )
    command = [*monarch.command, "run", "--nproc-per-node", "2", script]
    terminal = Terminal(command, monarch.environment, str(monarch.folder))
    try:
        before = terminal.attributes()
        terminal.until(r"\(Pdb\) ")
        terminal.type("p secret\n")
        terminal.until("40")
        terminal.until(r"\(Pdb\) ")
        terminal.type("c\n")
        for line in ("0 True True 80", "1 True True 80", "over 0", "over 1"):
            while f"{line}\n" not in terminal.shown:
                terminal.until(".")
        assert terminal.process.wait(TIMEOUT) == 0
        assert terminal.attributes() == before
    finally:
        terminal.close()


class OnceANode:
    """The same command, started on each of two nodes, which are this machine."""

    def __init__(self, monarch: CommandLine) -> None:
        self.monarch = monarch
        monarch.environment["MONARCH_SECRET"] = "of the test"
        self.started: list[subprocess.Popen[str]] = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.endpoint = f"127.0.0.1:{free.getsockname()[1]}"

    def start(self, node: str, *words: str, nodes: str = "2") -> subprocess.Popen[str]:
        self.monarch.environment["NODE"] = node
        meet = ["--nnodes", nodes, "--rdzv-backend", "c10d", "--rdzv-endpoint", self.endpoint, "--rdzv-id", "7"]
        self.started.append(self.monarch.start("run", *meet, *words))
        return self.started[-1]


@pytest.fixture
def once(monarch: CommandLine) -> Iterator[OnceANode]:
    found = OnceANode(monarch)
    yield found
    for one in found.started:
        one.kill()
        one.communicate(timeout=TIMEOUT)


def ends(running: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    found = []
    for one in running:
        out, err = one.communicate(timeout=TIMEOUT)
        found.append((one.returncode, out, err))
    return found


@full
def test_commands_started_once_a_node_form_one_world(monarch: CommandLine, once: OnceANode) -> None:
    """One leads and shows what all print; --node-rank is obeyed; one more command than --nnodes says is refused."""
    script = program(
        monarch,
        """
print("rank", rank, os.environ["WORLD_SIZE"], os.environ["GROUP_RANK"], os.environ["NODE"], flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
if "fail" in sys.argv and rank == 3:
    sys.exit(7)
""",
    )
    per_node = ["--nproc-per-node", "2"]
    running = [once.start(node, "--node-rank", node, *per_node, script, "fail") for node in ("1", "0")]
    lines = queue.SimpleQueue[str]()
    readers = [threading.Thread(target=lambda one=one: [lines.put(line) for line in one.stdout]) for one in running]
    for reader in readers:
        reader.start()
    begun = sorted(lines.get(timeout=TIMEOUT) for _ in range(4))
    assert begun == [f"rank {rank} 4 {rank // 2} {rank // 2}\n" for rank in range(4)]
    [(status, _, err)] = ends([once.start("2", *per_node, script, "fail")])
    assert status == 1 and "is one more" in err, err
    (monarch.folder / "go").touch()
    for one in running:
        assert one.wait(TIMEOUT) == 7
    for reader in readers:
        reader.join()
    said = [one.stderr.read() for one in running if one.stderr is not None]
    assert all("2 nodes have met" in err for err in said)
    assert sum("rank 3 ended with status 7" in err for err in said) == 1
    assert sum("shows what the ranks print" in err for err in said) == 1


@full
def test_a_signal_to_one_command_ends_the_run_of_all(monarch: CommandLine, once: OnceANode, watch: type[Watch]) -> None:
    script = program(monarch, "print(os.getpid(), flush=True)\ntime.sleep(1000)")

    def begin() -> tuple[list[subprocess.Popen[str]], Watch]:
        """The one that leads first."""
        leader = once.start("0", "--rdzv-conf", "is_host=true", script)
        other = once.start("1", "--rdzv-conf", "is_host=false", script)
        assert leader.stdout is not None and other.stderr is not None
        assert "shows what the ranks print" in other.stderr.readline()  # from here on it takes signals
        return [leader, other], watch([int(leader.stdout.readline()) for _ in range(2)])

    running, left = begin()
    running[1].send_signal(signal.SIGTERM)
    found = ends(running)
    assert [status for status, _, _ in found] == [143, 143], found
    assert "SIGTERM: all ranks are ended" in found[0][2] and left.survivors(TIMEOUT) == {}
    # And when the one that leads is killed, nothing goes on.
    running, left = begin()
    running[0].kill()
    found = ends(running)
    assert found[1][0] == 69 and "has gone: the ranks of this node are ended" in found[1][2], found
    assert left.survivors(TIMEOUT) == {}


@full
def test_commands_that_do_not_fit_each_other(monarch: CommandLine, once: OnceANode) -> None:
    script = program(monarch, "print('ran')")
    found = ends([once.start("0", script), once.start("1", script, nodes="3")])
    assert [(status, out) for status, out, _ in found] == [(1, "")] * 2
    assert all("say different numbers of nodes: --nnodes" in err for _, _, err in found), found
    [(status, _, err)] = ends([once.start("0", "--rdzv-conf", "join_timeout=0.5", script)])
    assert status == 1 and f"1 of 2 commands came to {once.endpoint} within 0.5 s" in err
    nobody = ["run", "--nnodes", "2", "--rdzv-endpoint", "192.0.2.1:5", "--rdzv-conf", "join_timeout=0", script]
    assert "no command leads at --rdzv-endpoint 192.0.2.1:5 after 0 s" in monarch(*nobody, status=75).stderr
    del monarch.environment["MONARCH_SECRET"]
    said = monarch("run", "--nnodes", "2", "--rdzv-endpoint", once.endpoint, script, status=1)
    assert "export MONARCH_SECRET=$(monarch secret)" in said.stderr and said.stdout == ""


SAME = """
import json, os, sys
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main() -> None:
    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
             "ROLE_WORLD_SIZE", "ROLE_NAME", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
             "TORCH_NCCL_ASYNC_ERROR_HANDLING", "CUDA_VISIBLE_DEVICES"]
    found = {name: os.environ.get(name) for name in names}
    found |= {"sum": total.item(), "argv": sys.argv, "path": sys.path[0], "name": __name__, "executable": sys.executable}
    found |= {"set": sorted(name for name in os.environ if name.startswith(("TORCHELASTIC", "MASTER")))}
    sys.stdout.write(json.dumps(found) + "\\n")  # at once: under torchrun lines of ranks may mix
    sys.stderr.write(f"to stderr {dist.get_rank()}\\n")
    dist.barrier()
    if "fail" in sys.argv and dist.get_rank() == 1:
        raise ValueError("bad luck")
    dist.destroy_process_group()

main()
"""


@full
@pytest.mark.skipif(sys.platform != "linux", reason="torchrun is compared here")
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--nproc-per-node", "2", "--tee", "3", "--max-restarts", "0", "--role", "r", "same.py", "--a", "-m", "b"], 0),
        pytest.param(["--nproc_per_node=2", "same.py", "fail"], 1, marks=slow),
        pytest.param(
            ["--nproc-per", "2", "--tee", "1", "--virtual-local", "--log-dir", "logs", "--duplicate-stdout", "RANK,,x,sum",
             "same.py"],
            0,
            marks=slow,
        ),
    ],
    ids=["well", "badly", "abbreviated"],
)  # fmt: skip
def test_the_same_as_torchrun(monarch: CommandLine, words: list[str], status: int) -> None:
    """Checks what ranks see, what is shown, and how it ends; the script is the same, and so are the arguments."""
    pytest.importorskip("torch", reason="compares with torchrun")
    (monarch.folder / "same.py").write_text(SAME)
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    ours = [*monarch.command, "run"]
    env = monarch.environment | {"OMP_NUM_THREADS": "1"}

    def run(launcher: list[str], *words: str) -> tuple[int, list[str], list[str], list[str], str]:
        done = subprocess.run(
            [*launcher, *words],
            cwd=monarch.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        logs = monarch.folder / "logs"
        filtered = sorted(line for file in logs.rglob("filtered_stdout.log") for line in file.read_text().splitlines())
        shutil.rmtree(logs, ignore_errors=True)
        errors = sorted(line for line in done.stderr.splitlines() if "to stderr" in line)
        return done.returncode, sorted(done.stdout.splitlines()), errors, filtered, done.stderr

    theirs, here = run(torchrun, *words), run(ours, *words)
    assert here[:4] == theirs[:4] and here[0] == status and len(here[1]) == len(here[2]) == 2, (here, theirs)
    if status:
        assert "ValueError: bad luck" in here[4] and "rank 1 ended with status 1" in here[4]


@full
def test_ranks_are_bound_and_events_told(monarch: CommandLine) -> None:
    script = program(monarch, "print(rank, sorted(os.sched_getaffinity(0)), flush=True)\nsys.exit(int(sys.argv[1]))")
    ours = sorted(os.sched_getaffinity(0))
    words = ["--numa-binding", "exclusive", "--event-log-handler", "console", "--nproc-per-node"]
    done = monarch("run", *words, "1", script, "3", status=3)
    [(_, own)] = [line.split(" ", 1) for line in done.stdout.splitlines()]
    assert set(json.loads(own)) <= set(ours)
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('{"name"')]
    assert [(event["source"], event["metadata"]["state"]) for event in events] == [
        ("WORKER", "START"), ("WORKER", "FAILED"), ("AGENT", "SUCCEEDED"),
    ]  # fmt: skip
    done = monarch("run", *words, str(2 * len(ours) + 1), script, "0", status=1)
    assert "would each have one of their own: give fewer ranks, or --numa-binding node" in done.stderr
