"""torchrun's arguments, what they make of each rank, and what is told of failures. No processes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping

import pytest

from monarch._text import ranges
from monarch.config import configured
from monarch.job.commands.command_plan import PYTHON, Sink
from monarch.job.torchrun import arguments, failures, rank_plan
from monarch.job.torchrun.arguments import RankStreams, TorchrunOptions
from monarch.job.torchrun.failures import RankFailure
from monarch.job.torchrun.meeting import MeetingPlace


def parsed(*words: str, env: Mapping[str, str] | None = None) -> TorchrunOptions:
    parser = argparse.ArgumentParser()
    arguments.add_arguments(parser)
    return arguments.options(parser.parse_args(words), env or {})


def test_defaults() -> None:
    found = parsed("train.py")
    assert (found.nodes, found.per_node, found.max_restarts, found.role) == (None, "1", 0, "default")
    assert found.command == [PYTHON, "-u", "train.py"] and found.shown is None and found.grace == 30
    assert (found.master_addr, found.master_port, found.run_id, found.log_dir) == (None, None, None, None)
    assert not found.redirects.any and not found.tee.any and found.unused == []


def test_how_long_a_rank_may_be_stopped() -> None:
    assert parsed("a.py").suspect_timeout == 300
    with configured(suspect_timeout="20s"):
        assert parsed("a.py").suspect_timeout == 20
        assert parsed("--suspect-timeout", "1m 30s", "a.py").suspect_timeout == 90
        assert parsed("--suspect-timeout", "0s", "a.py").suspect_timeout == 0
        assert parsed("a.py", env={"PET_SUSPECT_TIMEOUT": "7"}).suspect_timeout == 7
    with pytest.raises(ValueError, match=r"^--suspect-timeout is a time such as 30s, 5m or 0s: .*'soon'"):
        parsed("--suspect-timeout", "soon", "a.py")


def test_what_is_behind_the_script_is_the_scripts() -> None:
    found = parsed("--nproc-per-node", "8", "train.py", "--nnodes", "3", "-m", "--", "x")
    assert found.command == [PYTHON, "-u", "train.py", "--nnodes", "3", "-m", "--", "x"] and found.nodes is None


def test_both_spellings_and_variables() -> None:
    assert parsed("--nproc_per_node=4", "--max_restarts", "2", "a.py").per_node == "4"
    found = parsed(
        "a.py", env={"PET_NNODES": "2:4", "PET_NPROC_PER_NODE": "gpu", "PET_MODULE": "1", "PET_MAX_RESTARTS": "3"}
    )
    assert (found.nodes, found.per_node, found.max_restarts) == ((2, 4), "gpu", 3)
    assert found.command == [PYTHON, "-u", "-m", "a.py"]
    assert parsed("--nnodes", "1", "a.py", env={"PET_NNODES": "2"}).nodes == (1, 1)


def test_the_kinds_of_script() -> None:
    assert parsed("-m", "pkg.train", "x").command == [PYTHON, "-u", "-m", "pkg.train", "x"]
    assert parsed("--no-python", "./prog", "x").command == ["./prog", "x"]
    assert parsed("--run-path", "/a.py", "x").command[-2:] == ["/a.py", "x"]


def test_the_master_and_the_signals() -> None:
    found = parsed("--master-addr", "node1", "a.py")
    assert (found.master_addr, found.master_port) == ("node1", 29500)
    assert parsed("--master_port", "1234", "a.py").master_port == 1234
    assert parsed("--signals-to-handle", "SIGTERM,SIGUSR1", "a.py").signals == [15, 10]
    assert parsed("--standalone", "--nnodes", "4", "a.py").nodes == (1, 1)
    assert parsed("--local-ranks-filter", "0,2", "a.py").shown == {0, 2}


def test_what_has_no_meaning() -> None:
    found = parsed("--monitor-interval", "1", "--rdzv_endpoint", "n:1", "--rdzv-id", "7", "--node-rank", "0", "a.py")
    assert found.unused == ["--monitor-interval"] and found.run_id == "7" and found.meeting is None
    assert found.unused_with_job == ["--rdzv-endpoint", "--node-rank"] and found.lonely_endpoint == "n:1"


def met(*words: str, env: Mapping[str, str] | None = None) -> MeetingPlace:
    found = parsed("--nnodes", "2", *words, "a.py", env=env).meeting
    assert found is not None
    return found


def test_where_commands_of_all_nodes_meet() -> None:
    found = met(
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "node1:4711", "--node-rank", "1", "--local-addr", "10.0.0.2"
    )
    assert found == MeetingPlace(host="node1", port=4711, node_rank=1, local_address="10.0.0.2")
    assert str(met("--rdzv-endpoint", "[fd00::1]:5")) == "[fd00::1]:5"
    assert [met("--rdzv-endpoint", text).port for text in ("node1", "fd00::1", "[fd00::1]")] == [29400] * 3
    static = met("--master-addr", "node1", "--node-rank=0")
    assert (static.host, static.port, static.node_rank) == ("node1", 29500, 0)
    said = "join_timeout=5,last_call_timeout=2,is_host=true,read_timeout=9"
    told = met("--rdzv-endpoint", "n:1", "--rdzv-conf", said)
    assert (told.limit, told.last_call, told.leads) == (5, 2, True)
    assert met(env={"PET_RDZV_ENDPOINT": "n:7", "PET_NODE_RANK": "1"}).port == 7
    # A single node meets nobody, and processes of this machine neither.
    assert parsed("--standalone", "--nnodes", "2", "--rdzv-endpoint", "n:1", "a.py").meeting is None
    assert parsed("--nnodes", "2", "a.py").meeting is None


def test_commands_that_srun_has_multiplied() -> None:
    step = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1"}

    def check(*words: str, with_job: bool = False, env: Mapping[str, str] = step) -> None:
        arguments.check_starts(parsed(*words, "a.py"), env, with_job)

    for endpoint in ("localhost:0", "localhost:29500", "127.0.0.1:5", "node1:0"):
        check("--rdzv-endpoint", endpoint)
    check("--nnodes", "4", "--rdzv-endpoint", "n:1")
    check("--nnodes", "4", env={"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, with_job=True)
    check("--nnodes", "4", env={"SLURM_NTASKS": "4"})
    with pytest.raises(ValueError, match="4 times, and each would run on all hosts of the job: start it once"):
        check(with_job=True)
    with pytest.raises(ValueError, match=r"each would run 4 nodes of its own: .* --rdzv-endpoint HOST:PORT"):
        check("--nnodes", "4")
    with pytest.raises(ValueError, match="without --nnodes each would run alone: say --nnodes 4"):
        check("--rdzv-endpoint", "node1:29500")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nnodes", "0", "a.py"], "1 <= MIN <= MAX, got '0'"),
        (["--nnodes", "3:2", "a.py"], "1 <= MIN <= MAX"),
        (["--nnodes", "x", "a.py"], "a number or MIN:MAX, got 'x'"),
        (["--nproc-per-node", "0", "a.py"], "a number, auto, cpu or gpu; got '0'"),
        (["--max-restarts", "-1", "a.py"], "0 or more"),
        (["-r", "4", "a.py"], "'4' says no streams"),
        (["-t", "0:5", "a.py"], "'0:5' says no streams"),
        (["--signals-to-handle", "SIGFOO", "a.py"], "'SIGFOO' is not the name of a signal"),
        (["--node-rank", "1", "a.py"], "--node-rank 1 is one of several nodes, and --nnodes says one"),
        (["--nnodes", "2", "--node-rank", "0", "a.py"], "meet at --rdzv-endpoint HOST:PORT, and none is given"),
        (["--nnodes", "2", "--rdzv-backend", "c10d", "a.py"], "meet at --rdzv-endpoint HOST:PORT, and none is given"),
        (["--nnodes", "2", "--rdzv-backend", "etcd", "--rdzv-endpoint", "n:1", "a.py"], "write --rdzv-backend c10d"),
        (["--nnodes", "2", "--rdzv-endpoint", "n:0", "a.py"], "have to know the port at which they meet"),
        (["--nnodes", "2", "--rdzv-endpoint", "n:x", "a.py"], "--rdzv-endpoint is HOST:PORT, got 'n:x'"),
        (["--nnodes", "2", "--rdzv-endpoint", ":5", "a.py"], "--rdzv-endpoint is HOST:PORT, got ':5'"),
        (
            ["--nnodes", "2", "--rdzv-endpoint", "n:1", "--node-rank", "x", "a.py"],
            "--node-rank is the number of this node",
        ),
        (["--nnodes", "2", "--rdzv-endpoint", "n:1", "--rdzv-conf", "x", "a.py"], "NAME=VALUE,NAME=VALUE; got 'x'"),
        (
            ["--nnodes", "2", "--rdzv-endpoint", "n:1", "--rdzv-conf", "timeout=x", "a.py"],
            "a number of seconds, got 'x'",
        ),
        (["--nnodes", "2", "--rdzv-endpoint", "n:1", "--rdzv-conf", "is_host=x", "a.py"], "true or false, got 'x'"),
        (["--numa-binding", "chip", "a.py"], "is one of node, socket, exclusive, core-complex; got 'chip'"),
        (["--logs-specs", "mine", "a.py"], "--logs-specs is not there in monarch run: leave it out"),
        (["-m", "--no-python", "a.py"], "exclude each other"),
    ],
)
def test_what_does_not_fit(words: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parsed(*words)


def test_every_option_of_torchrun_is_known() -> None:
    """Knows every option of the torch that is installed."""
    run = pytest.importorskip("torch.distributed.run", reason="compares with torchrun")
    theirs = {option for action in run.get_args_parser()._actions for option in action.option_strings}
    parser = argparse.ArgumentParser()
    arguments.add_arguments(parser)
    ours = {option for action in parser._actions for option in action.option_strings}
    assert theirs - ours == set()


# --- each rank


def commands(options: TorchrunOptions, sizes: tuple[int, int] = (2, 2), attempt: int = 0) -> list[rank_plan.Command]:
    return rank_plan.commands(options, sizes, "id", attempt, ("node1", 77), "/logs/id_x", "/cwd", {"A": "b"})


def test_the_environment_is_torchruns() -> None:
    found = commands(parsed("--max-restarts", "3", "--role", "trainer", "a.py"), attempt=1)
    assert found[3].env == {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2", "ROLE_RANK": "3", "ROLE_WORLD_SIZE": "4", "ROLE_NAME": "trainer",
        "MASTER_ADDR": "node1", "MASTER_PORT": "77", "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RUN_ID": "id", "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "A": "b",
    }  # fmt: skip
    assert found[3].report_variable == "TORCHELASTIC_ERROR_FILE"


def test_where_output_goes() -> None:
    found = commands(parsed("a.py"))
    assert found[0].stdout == Sink("", True)
    found = commands(parsed("-r", "3", "a.py"))
    assert found[2].stderr == Sink("/logs/id_x/attempt_0/2/stderr.log", False)
    found = commands(parsed("-t", "0:1,1:2", "a.py"), attempt=2)
    assert found[2].stdout == Sink("/logs/id_x/attempt_2/2/stdout.log", True)  # local rank 0 of the second host
    assert (found[2].stderr, found[3].stdout) == (Sink("", True), Sink("", True))
    found = commands(parsed("-t", "3", "--local-ranks-filter", "1", "a.py"))
    assert [one.stdout.shown for one in found] == [False, True, False, True]
    files = [sink.file for one in found for sink in (one.stdout, one.stderr)]
    assert len(set(files)) == 8


def test_lines_that_are_duplicated() -> None:
    found = commands(
        parsed("-t", "1", "--duplicate-stdout-filters", "a,,b,c", "--duplicate-stderr-filters", "x", "a.py")
    )
    out = found[1].stdout
    assert (out.filtered, out.filters, out.label) == (
        "/logs/id_x/attempt_0/filtered_stdout.log",
        ["a,b", "c"],
        "[default1]:",
    )
    assert found[1].stderr == Sink("", True)  # no part of --tee
    assert commands(parsed("-t", "3", "a.py"))[0].stdout.filtered == ""


def test_a_device_of_its_own() -> None:
    """Named as its host shows them."""
    options = parsed("--virtual-local-rank", "a.py")

    def devices(*visible: str | None) -> list[tuple[str, str]]:
        found = rank_plan.commands(options, (2, 2), "id", 0, ("node1", 77), "/logs", "/cwd", {}, visible=visible)
        return [(one.env["LOCAL_RANK"], one.env["CUDA_VISIBLE_DEVICES"]) for one in found]

    assert devices(None, "4, 5") == [("0", "0"), ("0", "1"), ("0", "4"), ("0", "5")]
    with pytest.raises(ValueError, match="local rank 1 has no device of its own, CUDA_VISIBLE_DEVICES is '4'"):
        devices("4", None)
    assert "CUDA_VISIBLE_DEVICES" not in commands(parsed("a.py"))[0].env


def test_prefixes() -> None:
    assert rank_plan.prefixes(parsed("a.py"), (1, 1)) == [(None, None)]
    assert rank_plan.prefixes(parsed("a.py"), (1, 2)) == [("", ""), ("", "")]
    both = [("[default0]:", "[default0]:"), ("[default1]:", "[default1]:")]
    assert rank_plan.prefixes(parsed("-t", "3", "a.py"), (2, 2)) == both * 2
    # Streams that are no part of --tee are bare.
    assert rank_plan.prefixes(parsed("-t", "1", "a.py"), (1, 2)) == [("[default0]:", ""), ("[default1]:", "")]
    assert rank_plan.prefixes(parsed("-t", "0:2", "a.py"), (1, 2)) == [("", "[default0]:"), ("", "")]


def test_which_hosts_take_part() -> None:
    assert [rank_plan.chosen(nodes, 3, "the job") for nodes in (None, (1, 1), (2, 8), (3, 3))] == [3, 1, 3, 3]
    with pytest.raises(ValueError, match=r"--nnodes asks for 4 host\(s\) or more, and the job has 3"):
        rank_plan.chosen((4, 4), 3, "the job")


def test_how_many_ranks() -> None:
    facts = [("a", 8, 64), ("b", 8, 64)]
    assert [rank_plan.count_of(text, facts) for text in ("3", "gpu", "auto", "cpu")] == [3, 8, 8, 64]
    assert rank_plan.count_of("auto", [("a", 0, 4)]) == 4
    with pytest.raises(ValueError, match="b has no device"):
        rank_plan.count_of("gpu", [("a", 8, 4), ("b", 0, 4)])
    with pytest.raises(ValueError, match=r"another number on each host \(a: 8, b: 4\)"):
        rank_plan.count_of("gpu", [("a", 8, 64), ("b", 4, 64)])


# --- failures


def failure(rank: int, at: float, status: int = 1, signal: int = 0, **more: object) -> RankFailure:
    return RankFailure(rank, rank % 2, "node", 100 + rank, status, signal, at, **more)  # type: ignore[arg-type]


def test_the_first_is_blamed() -> None:
    said = b'noise\nTraceback (most recent call last):\n[rank1]:   File "a.py"\n[rank1]: ValueError: bad\n'
    found = [failure(0, 2.0), failure(1, 1.0, 3, said=said), failure(2, 3.0, 139, 11)]
    assert failures.first(found).rank == 1
    assert failures.told("a.py", found, [3, 4, 5, 7], 0, 2).splitlines() == [
        "a.py: rank 1 ended with status 3 (local rank 1 on node, pid 101)",
        "    Traceback (most recent call last):",
        '      File "a.py"',
        "    ValueError: bad",
        "  later: rank 0 ended with status 1",
        "  later: rank 2 was killed by SIGSEGV (11)",
        "  ended because of it: ranks 3-5, 7",
        "  attempt 1 of 2 (--max-restarts 1)",
    ]


def test_what_a_rank_recorded_wins() -> None:
    report = json.dumps(
        {"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "Traceback\nValueError: x"}}}
    )
    assert failures.why(failure(0, 1.0, said=b"other", report=report.encode())) == ["Traceback", "ValueError: x"]
    assert failures.why(failure(0, 1.0, said=b"last words\n", report=b"{broken")) == ["last words"]
    assert failures.why(failure(0, 1.0)) == ["it wrote nothing to stderr"]


def test_long_reports_are_cut() -> None:
    tail = failures.Tail()
    for number in range(100_000):
        tail.add(b"line %d\n" % number)
    lines = failures.why(failure(0, 1.0, said=tail.value()))
    assert len(tail.value()) == 32 * 1024 and len(lines) == 61 and lines[-1] == "line 99999"
    many = failures.told("a.py", [failure(rank, rank) for rank in range(50)], [], 0, 1)
    assert "44 more ranks failed" in many and len(many.splitlines()) < 12


def test_ranges() -> None:
    assert ranges([5, 0, 1, 2, 7, 8]) == "0-2, 5, 7-8"
    assert RankStreams(0, {}).any is False and sys.version_info >= (3, 11)
