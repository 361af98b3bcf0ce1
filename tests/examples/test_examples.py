"""Every example runs as a user would run it, and prints what it promises."""

from __future__ import annotations

import ast
import importlib.util
import io
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.examples.running import EXAMPLES, read_notebook, run_notebook, run_program
from tests.support.tiers import first_of, full, slow

pytestmark = pytest.mark.procs
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the example needs torch")


def run(name: str, *arguments: str, cwd: Path) -> list[str]:
    """The lines the example prints; fails when it does not end well."""
    done = run_program(EXAMPLES / name, *arguments, cwd=cwd)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.splitlines()


def test_getting_started_prints_a_line_for_every_stop(tmp_path: Path) -> None:
    assert run("getting_started.py", cwd=tmp_path) == [
        "spawn: 4 actors in 4 other processes",
        "call: [11, 11, 11, 11], at gpus=2: 11",
        "value mesh: {'gpus': 0} has 11",
        "value mesh: {'gpus': 1} has 11",
        "slice: [11, 11, 111, 111]",
        "call one: 112",
        "stream: [11, 11, 111, 112]",
        "accumulate: 245",
        "error: ZeroDivisionError: division by zero",
        "alive: 11.0",
        "context: ['counter 1 of 4', 'counter 2 of 4', 'counter 3 of 4', 'counter 4 of 4']",
        "port: [3, 2, 1]",
        "concurrent: went through",
        "supervision: heard of fragile",
        "config: 1m 30s to clean up",
        "stopped",
    ]


@full
def test_stuck_finds_the_rank_that_never_enters(tmp_path: Path) -> None:
    said = "\n".join(run("stuck.py", cwd=tmp_path))
    assert "ranks 0-2 wait in all_reduce #3 of group default_pg; rank 3 has not entered it" in said
    assert "in load_batch()" in said


def test_ping_pong_plays_rallies_in_which_the_players_take_turns(tmp_path: Path) -> None:
    *rallies, score = run("ping_pong.py", "--rallies", "4", cwd=tmp_path)
    assert len(rallies) == 4
    points = {"ping": 0, "pong": 0}
    for number, line in enumerate(rallies, start=1):
        told = re.fullmatch(r"rally (\d+): (.+), and (\w+) misses: point for (\w+)", line)
        assert told, line
        hits, loser, winner = told[2].split(), told[3], told[4]
        turns = ["ping", "pong"] if number % 2 else ["pong", "ping"]
        assert (int(told[1]), hits) == (number, [turns[i % 2] for i in range(len(hits))])
        assert (winner, loser) == (hits[-1], turns[len(hits) % 2])
        points[winner] += 1
    assert score == f"after 4 rallies: ping {points['ping']}, pong {points['pong']}"


@full
def test_compiled_graph_counts_words_and_goes_on_after_an_error(tmp_path: Path) -> None:
    assert run("compiled_graph.py", cwd=tmp_path) == [
        "'A rose is a rose is a rose': 3 different words, by counter [0, 2, 1]",
        "'To be, or not to be': 4 different words, by counter [1, 0, 3]",
        "'': an empty text",
        "'Never, never, never!': 1 different words, by counter [0, 0, 1]",
    ]


@full
@needs_torch
@pytest.mark.parametrize("stages", ["2", "3"])
def test_a_pipeline_as_a_graph_has_the_losses_of_one_process(stages: str, tmp_path: Path) -> None:
    *_, last = run("pipeline_graph.py", "--stages", stages, cwd=tmp_path)
    assert re.fullmatch(r"largest difference of 12 losses: \de-0[5-9]|largest difference of 12 losses: 0e\+00", last)


@full
def test_kept_rollouts_learn_which_arm_is_the_best(tmp_path: Path) -> None:
    assert run("kept_rollouts.py", cwd=tmp_path) == [
        "mean reward 0.40 at first, 0.82 after 12 steps of 2000 plays",
        "arm 3 is the best",
    ]


@pytest.mark.parametrize("crawlers", first_of([1, 3]))
def test_crawler_maps_the_whole_site_once(tmp_path: Path, crawlers: int) -> None:
    *pages, total = run("crawler.py", "--crawlers", str(crawlers), cwd=tmp_path)
    assert [re.split(r"\s+-> |\s{2,}", line) for line in pages] == [
        ["/about.html", "About us", "/index.html"],
        ["/blog/first.html", "First post", "/blog/second.html"],
        ["/blog/index.html", "Blog", "/blog/first.html, /blog/second.html, /docs/start.html"],
        ["/blog/second.html", "Second post", "/blog/first.html, /about.html"],
        ["/docs/actors.html", "Actors", "/docs/meshes.html, /docs/start.html, /docs/removed.html"],
        [
            "/docs/index.html",
            "Documentation",
            "/docs/start.html, /docs/actors.html, /docs/meshes.html, /index.html",
        ],
        ["/docs/meshes.html", "Meshes", "/docs/actors.html, /docs/index.html"],
        ["/docs/removed.html", "HTTP 404", "(no links)"],
        ["/docs/start.html", "Getting started", "/docs/actors.html"],
        ["/index.html", "Home", "/docs/index.html, /blog/index.html, /about.html"],
    ]
    told = re.fullmatch(rf"10 pages by {crawlers} crawlers, visits by crawler: \[(.+)\]", total)
    assert told, total
    visits = [int(n) for n in told[1].split(",")]
    assert (len(visits), sum(visits)) == (crawlers, 10)


# --- DDP: the script, its helpers, its twin.


@full
@needs_torch
def test_ddp_trains_and_ends_with_equal_parameters(tmp_path: Path) -> None:
    lines = run("ddp.py", "--procs", "2", "--steps", "8", "--device", "cpu", cwd=tmp_path)
    out = "\n".join(lines)
    assert lines[0].startswith("2 ranks on cpu, a GPT of ")
    assert [int(n) for n in re.findall(r"^step (\d+)/8  loss ", out, re.MULTILINE)] == list(range(1, 9))
    for text in ("train loss", "val   loss"):
        told = re.search(rf"^{text} (\S+) -> (\S+)$", out, re.MULTILINE)
        assert told, out
        assert float(told[2]) < float(told[1]) - 1, told[0]
    sample = re.search(r"--- a sample ---\n(.*)\n--- end of the sample ---", out, re.DOTALL)
    assert sample and sample[1].startswith("def "), out
    assert sample[1].replace("\n", "").isprintable(), "what a terminal would take for commands"
    prints = re.findall(r"^rank (\d): parameters ([0-9a-f]{16}), norm (\S+)$", out, re.MULTILINE)
    assert [rank for rank, _, _ in prints] == ["0", "1"]
    assert prints[0][1:] == prints[1][1:]
    assert "parameters equal on all ranks" in lines
    heads = ["rank", "device", "tokens/s", "ms/step", "forward", "backward", "all-reduce", "optimizer"]
    table = [line.split() for line in lines[-4:]]
    assert [table[0], table[1][:2], table[2][:2], table[3][0]] == [heads, ["0", "cpu"], ["1", "cpu"], "total"]


@pytest.fixture(scope="module")
def ddp() -> ModuleType:
    """examples/ddp.py as a module."""
    spec = importlib.util.spec_from_file_location("ddp_example", EXAMPLES / "ddp.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@needs_torch
def test_ddp_draws_a_bar_on_a_terminal(ddp: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    ddp.show_progress(1, 2, 3.25, 1000.0)
    ddp.show_progress(2, 2, 3.0, 1000.0)
    half, full = sys.stdout.getvalue().split("\r")[1:]  # type: ignore[attr-defined]
    assert half.rstrip(" ") == f"[{'#' * 15}{' ' * 15}] step 1/2  loss 3.250  1,000 tokens/s"
    assert full.startswith(f"[{'#' * 30}] step 2/2  loss 3.000") and full.endswith("\n")


@needs_torch
@pytest.mark.parametrize(
    ("count", "wanted", "procs", "chosen"),
    [
        (0, "auto", 4, "cpu"),
        (4, "auto", 4, "xpu"),
        (3, "auto", 4, "cpu"),
        (4, "cpu", 4, "cpu"),
        (4, "xpu", 2, "xpu"),
    ],
)
def test_ddp_takes_accelerators_when_there_is_one_a_process(
    ddp: ModuleType, monkeypatch: pytest.MonkeyPatch, count: int, wanted: str, procs: int, chosen: str
) -> None:
    pretend_accelerators(ddp, monkeypatch, count)
    assert ddp.choose_device(wanted, procs) == chosen


@needs_torch
@pytest.mark.parametrize(("count", "wanted"), [(0, "xpu"), (1, "xpu"), (2, "cuda")])
def test_ddp_says_that_devices_are_missing(
    ddp: ModuleType, monkeypatch: pytest.MonkeyPatch, count: int, wanted: str
) -> None:
    pretend_accelerators(ddp, monkeypatch, count)
    with pytest.raises(SystemExit, match=f"2 processes need 2 devices of kind {wanted}"):
        ddp.choose_device(wanted, 2)


def pretend_accelerators(ddp: ModuleType, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    device = ddp.torch.device("xpu")
    monkeypatch.setattr(ddp.torch.accelerator, "is_available", lambda: count > 0)
    monkeypatch.setattr(ddp.torch.accelerator, "current_accelerator", lambda: device if count else None)
    monkeypatch.setattr(ddp.torch.accelerator, "device_count", lambda: count)


def definitions(source: str) -> dict[str, str]:
    """The classes and functions at the top of a program, without regard to their layout."""
    tree = ast.parse(source)
    return {n.name: ast.dump(n) for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}


def test_the_notebook_defines_what_the_script_defines() -> None:
    cells = [cell for cell in read_notebook("ddp.ipynb").cells if cell.cell_type == "code"]
    # Cells with a top-level `await` are no modules, and define nothing.
    twins = definitions("\n".join(cell.source for cell in cells if "await " not in cell.source))
    assert set(twins) == {"Settings", "train_and_validation_text", "GPT", "Trainer"}
    script = definitions((EXAMPLES / "ddp.py").read_text())
    assert twins == {name: script[name] for name in twins}


def test_the_notebook_is_kept_without_outputs() -> None:
    kept = [cell.id for cell in read_notebook("ddp.ipynb").cells if cell.cell_type == "code" and cell.outputs]
    assert kept == []


@slow
@needs_torch
def test_the_notebook_runs_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = run_notebook("ddp.ipynb", tmp_path, monkeypatch)
    shown = {cell: "".join(o.text for o in outputs if o.name == "stdout") for cell, outputs in streams.items()}
    assert shown["spawn"].startswith("4 ranks on cpu, a GPT of ")
    told = re.search(r"^train loss (\S+) -> (\S+)$", shown["train"], re.MULTILINE)
    assert told and float(told[2]) < float(told[1]) - 1, shown["train"]
    assert shown["sample"].startswith("def ")
    assert shown["equal"] == "parameters equal on all ranks: True\n"
    assert re.findall(r"^rank (\d): \S+ tokens/s; forward ", shown["throughput"], re.MULTILINE) == list("0123")
    assert shown["stop"] == "stopped\n"


@full
def test_fault_tolerant_ddp_learns_what_an_undisturbed_run_learns(tmp_path: Path) -> None:
    lines = run("fault_tolerant_ddp.py", "--ranks", "2", "--steps", "300", "--every", "0.3", cwd=tmp_path)
    killed = [line for line in lines if re.fullmatch(r"  killed rank [01] \(pid \d+\)", line)]
    recovered = [line for line in lines if re.search(r"(SupervisionError|ActorError): recovered in [\d.]+ s", line)]
    assert killed and recovered
    assert any(re.match(rf"{len(recovered)} recoveries: median [\d.]+ s, longest [\d.]+ s", line) for line in lines)
    (said,) = [line for line in lines if line.startswith("largest difference of the two loss curves:")]
    difference = re.search(r"curves: (\S+) \(tolerance (\S+)\)", said)
    assert difference is not None and float(difference[1]) <= float(difference[2])
    assert "plot: fault_tolerant_ddp.png" in lines and (tmp_path / "fault_tolerant_ddp.png").stat().st_size > 10_000


@full
@needs_torch
def test_a_simulated_cluster_takes_longer_between_hosts(tmp_path: Path) -> None:
    lines = run("simulate_cluster.py", "--hosts", "1", "4", "--trace", "trace.json", cwd=tmp_path)
    told = [re.fullmatch(r" +(\d+) ranks: +([\d.]+) ms a step, ([\d.]+) GB on each", line) for line in lines]
    assert [match[1] for match in told if match] == ["8", "32"]
    times = [float(match[2]) for match in told if match]
    assert 1.5 * times[0] < times[1]
    assert (tmp_path / "trace_1.json").stat().st_size > 1_000


@needs_torch
@full
def test_elastic_ddp_replaces_a_host_and_goes_on(tmp_path: Path) -> None:
    lines = run("elastic_ddp.py", "--steps", "20", cwd=tmp_path)
    assert lines[0] == "3 hosts, 1 spare(s), 1 trainer(s) on each host, 20 steps"
    assert "  replaced: host 2" in lines
    assert any(re.fullmatch(r"  recovered in \d+\.\d\d s, on with step 10", line) for line in lines)
    assert re.fullmatch(r"trained: 20 steps, loss 0\.\d{4} -> 0\.\d{4}", lines[-2])
    found = re.fullmatch(r"largest difference of a loss from one process that nobody disturbs: (\S+)", lines[-1])
    assert found is not None and float(found[1]) <= 1e-5


@full
def test_debugging_stops_at_the_broken_sample_and_goes_on_without_it(tmp_path: Path) -> None:
    *shown, losses = run("debugging.py", cwd=tmp_path)
    text = "\n".join(shown)
    assert "| trainers     |      2 | {'gpus': 2} |" in text
    assert "(Pdb) p step, batch\n(3, [3.0, 5.0, -1.0])\n" in text
    assert "'no logarithm'" in text
    assert text.endswith("Quitting debug session...")
    assert losses == "[4.024, 5.179, 4.586, 6.335]"
