"""The benchmarks: their options, what they count, what their tables show, and that ours answers every shape of a call."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiers import first_of, full

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
WORKLOADS = BENCHMARKS / "workloads"
SHORT = {"warmup_s": 0.01, "count_s": 0.02, "beside_s": 0.02}
SIDES = ("rate", "client cpu", "actor cpu", "client switches", "actor switches")


@pytest.fixture(autouse=True)
def scripts() -> Iterator[None]:
    """Benchmarks import each other by plain names, as scripts do; nothing of them stays behind."""
    before, path = set(sys.modules), list(sys.path)
    sys.path[:0] = [str(BENCHMARKS), str(WORKLOADS)]
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(BENCHMARKS)):
            del sys.modules[name]


class Local:
    """A target in this very process: a call costs nothing, and `usage` grows by one second and ten switches a reading."""

    def __init__(self, failing: int | None = None) -> None:
        self.failing = failing
        self.readings = 0
        self.callers_seen: set[int] = set()

    def callers(self, actors: Sequence[int]) -> list[Any]:
        def caller(number: int) -> Any:
            def call() -> None:
                self.callers_seen.add(threading.get_ident())
                if number == self.failing:
                    raise RuntimeError(f"caller {number}")

            return call

        return [caller(number) for number in range(len(actors))]

    def tasks(self, actors: Sequence[int]) -> list[Any]:
        async def call() -> None:
            pass

        return [call for _ in actors]

    def usage(self) -> tuple[float, int]:
        self.readings += 1
        return float(self.readings), 10 * self.readings


@pytest.mark.parametrize("client", ["sync", "asyncio"])
@pytest.mark.parametrize("callers", [1, 4])
def test_what_a_call_costs_is_counted_over_the_calls_that_were_timed(client: str, callers: int) -> None:
    target = Local()
    samples = import_module("_callers").measure("key", target, client, [0] * callers, SHORT)
    calls = len(samples["key"])
    assert set(samples) == {"key", *(f"key {side}" for side in SIDES)} and calls >= callers
    assert samples["key actor cpu"] == [1 / calls] and samples["key actor switches"] == [10 / calls]
    assert target.readings == 2


def test_a_single_caller_is_the_main_thread_and_several_are_threads() -> None:
    single, several = Local(), Local()
    measure = import_module("_callers").measure
    measure("key", single, "sync", [0], SHORT)
    measure("key", several, "sync", [0] * 4, SHORT)
    assert single.callers_seen == {threading.get_ident()}
    assert len(several.callers_seen) == 4 and threading.get_ident() not in several.callers_seen


def test_a_caller_that_fails_ends_the_others() -> None:
    with pytest.raises(RuntimeError, match="caller 2"):
        import_module("_callers").measure("key", Local(failing=2), "sync", [0] * 4, SHORT)


def test_the_table_shows_the_tail_and_what_both_sides_use() -> None:
    stats, question, report = import_module("_stats"), import_module("_question"), import_module("_report")
    aims = (stats.Aim(3.0, "p50", "p99"), stats.Aim(1 / 1.2, "peer"))
    measure = question.Measure("calls", "k", stats.MICROSECONDS, aims, tail=True, columns=question.CALL_COLUMNS)
    figures = {"rate": 2e4, "client cpu": 30e-6, "actor cpu": 20e-6, "client switches": 2.0, "actor switches": 1.5}
    times = [number * 1e-6 for number in range(1, 1001)]
    result = report.Result(
        measure,
        {"ours": {0: times}, "peer": {0: [time / 2 for time in times]}},
        {},
        {suffix: {"ours": {0: [value]}} for suffix, value in figures.items()},
    )
    block = report.table("title", [result], []).splitlines()[3:]
    heads = ("p50", "p90", "p99", "p99.9", "x floor", "ours better", "k calls/s", "CPU µs", "switches")
    assert re.split(r"  +", block[0]) == ["calls [µs]", *heads]
    assert block[1].split() == ["ours", "500.5", "900.1", "990.0", "999.0", "20.0", "30+20", "2.0+1.5"]
    assert block[2].split()[-3:] == ["-", "-+-", "-+-"]
    assert [line.split(maxsplit=1)[1].split("  ")[0] for line in block[3:]] == ["p99 <= 3x p50", "<= 1.2x peer"]
    assert [line.split()[-1] for line in block[3:]] == ["PASS", "FAIL"]
    (recorded,) = report.record([result])
    assert recorded["contenders"]["ours"]["p999"] == pytest.approx(999e-6, rel=1e-3)
    assert recorded["contenders"]["ours"]["actor cpu"] == 20e-6


def test_a_disturbed_round_moves_no_percentile_of_a_tail() -> None:
    rounds = [[1.0] * 1000, [100.0] * 10, [2.0] * 1000]
    summary = import_module("_stats").summarize(rounds, tail_by_round=True)
    assert (summary.p50, summary.p90, summary.p99, summary.p999) == (2.0, 2.0, 2.0, 2.0)
    pooled = import_module("_stats").summarize(rounds)
    assert (pooled.p50, pooled.p90, pooled.p999) == (2.0, 2.0, 100.0)


def test_a_second_checkout_takes_its_turns_after_ours(tmp_path: Path) -> None:
    harness, latency = import_module("_harness"), import_module("latency")
    (tmp_path / "monarch").mkdir()
    options = harness.parse("title", ["--contenders", "floor,ours", "--base", str(tmp_path)])
    assert (options.only, options.base) == (("floor", "ours", "base"), tmp_path)
    names = harness.with_base(latency.QUESTION).runs[0].contenders
    assert names[names.index("ours") + 1] == "base" and len(names) == len(latency.QUESTION.runs[0].contenders) + 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--base", "nowhere"], "there is no folder 'monarch' in nowhere"),
        (["--only", "base"], "say with --base which checkout"),
        (["--from", "record"], "say with --plot where to draw"),
        (["--only", "others"], "unknown contenders"),
    ],
)
def test_a_mistake_on_the_command_line_is_told(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        import_module("_harness").parse("title", arguments, drawable=True)
    assert said in capsys.readouterr().err


def answered(script: str, workload: str, **params: Any) -> dict[str, list[float]]:
    """The samples of a workload, run as the harness runs it."""
    done = subprocess.run(
        [sys.executable, str(WORKLOADS / script), workload, json.dumps(SHORT | params)],
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{WORKLOADS}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[-1]
    samples: dict[str, list[float]] = json.loads(line.removeprefix("BENCH-RESULT "))
    assert all(samples.values()), samples
    return samples


CONTENDERS = [("ours", "monarch_latency.py"), ("floor", "latency_floor.py"), ("socket", "latency_floor.py")]


@full
@pytest.mark.procs
@pytest.mark.parametrize(("contender", "script"), first_of(CONTENDERS))
def test_every_shape_of_a_call_is_answered(contender: str, script: str) -> None:
    samples = answered(script, "latency", contender=contender, callers=[1, 3], busy=True, pinned=True)
    shapes = {f"{n} {client} {style}" for n in (1, 3) for client in ("sync", "asyncio") for style in ("sync", "async")}
    assert {key for key in samples if len(key.split()) == 3} == shapes


@full
@pytest.mark.procs
@pytest.mark.parametrize(("contender", "script"), CONTENDERS[:2])
def test_every_number_of_actors_is_answered(contender: str, script: str) -> None:
    samples = answered(script, "actors_in_a_process", contender=contender, actors=[1, 2])
    assert {f"{what} {style}" for what in (1, 2, "beside") for style in ("sync", "async")} <= set(samples)


@full
@pytest.mark.procs
@pytest.mark.parametrize(("contender", "script"), [("ours", "monarch_grpo.py"), ("floor", "grpo_by_hand.py")])
def test_a_loop_of_asynchronous_rl_trains(contender: str, script: str) -> None:
    pytest.importorskip("torch", reason="the loop needs torch")
    settings = {"digits": 2, "base": 4, "width": 8, "prompts": 2, "group": 2}
    params = {
        "settings": settings,
        "generators": 1,
        "capacity": 2,
        "max_age": 4,
        "warmup": 2,
        "count": 6,
        "timeout": 100,
    }
    samples = answered(script, "train", contender=contender, root=str(ROOT), **params)
    assert set(samples) == {"samples", *(f"samples {what}" for what in ("steps", "age", "waited", "refused"))}
    assert 0 <= samples["samples age"][0] <= 4


@full
def test_a_record_becomes_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="only the plot needs matplotlib")
    latency = import_module("latency")
    tail = {"p50": 1e-4, "p90": 2e-4, "p99": 3e-4, "p999": 1e-3}
    measures = [measure.name for run in latency.QUESTION.runs for measure in run.measures]
    record = {"measures": [{"measure": name, "contenders": {"floor": tail, "ours": tail}} for name in measures]}
    latency.plot(record, tmp_path / "latency.svg")
    picture = (tmp_path / "latency.svg").read_text()
    assert all(
        text in picture for text in ("ours", "floor", "1 caller, idle machine", "8 callers, all other cores busy")
    )
