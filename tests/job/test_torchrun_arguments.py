"""torchrun's arguments, what they make of each rank, and what is told of failures. No processes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping

import pytest

from monarch.job.commands.command_plan import PYTHON, Sink
from monarch.job.torchrun import arguments, failures, rank_plan
from monarch.job.torchrun.arguments import RankStreams, TorchrunOptions
from monarch.job.torchrun.failures import RankFailure


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


def test_how_agents_meet_has_no_meaning() -> None:
    found = parsed("--rdzv-backend", "c10d", "--rdzv_endpoint", "n:1", "--rdzv-id", "7", "--node-rank", "0", "a.py")
    assert found.unused == ["--rdzv-backend", "--rdzv-endpoint", "--node-rank"] and found.run_id == "7"


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
        (["--node-rank", "1", "a.py"], "started once, not once on every node"),
        (["--numa-binding", "node", "a.py"], "--numa-binding is not there in monarch run"),
        (["--virtual-local-rank", "a.py"], "--virtual-local-rank is not there"),
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


def test_prefixes() -> None:
    assert rank_plan.prefixes(parsed("a.py"), (1, 1)) == [None]
    assert rank_plan.prefixes(parsed("a.py"), (1, 2)) == ["", ""]
    assert rank_plan.prefixes(parsed("-t", "1", "a.py"), (2, 2)) == ["[default0]:", "[default1]:"] * 2


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
    assert failures.ranges([5, 0, 1, 2, 7, 8]) == "0-2, 5, 7-8"
    assert RankStreams(0, {}).any is False and sys.version_info >= (3, 11)
