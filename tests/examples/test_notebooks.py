"""The notebooks beside the examples: they define what the scripts define, and run in a kernel, which may be interrupted."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.examples.running import EXAMPLES, TIMEOUT, environment, read_notebook, run_notebook
from tests.support.tiers import full

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the notebook needs torch")
needs_matplotlib = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="the notebook draws")

# What each defines that its script has as well.
TWINS = {
    "getting_started": {"Counter", "Gate"},
    "sweep": {
        "Trial",
        "Report",
        "Result",
        "train_and_validation_text",
        "GPT",
        "Worker",
        "Halving",
        "Screen",
        "Sweep",
        "opened",
    },
    "grpo/actors": {"Scorer", "Buffer", "Step", "Learner", "Generator", "train"},
}
OWN = {"getting_started": {"Talker"}, "sweep": {"Plot"}, "grpo/actors": {"Plot"}}


def definitions(source: str) -> dict[str, str]:
    """The classes and functions at the top of a program, without regard to their layout."""
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(source, "cell", "exec", flags)
    return {node.name: ast.dump(node) for node in tree.body if isinstance(node, kinds)}


@pytest.mark.parametrize("name", TWINS)
def test_a_notebook_defines_what_its_script_defines(name: str) -> None:
    cells = [cell for cell in read_notebook(f"{name}.ipynb").cells if cell.cell_type == "code"]
    here = definitions("\n".join(cell.source for cell in cells))
    script = definitions((EXAMPLES / f"{name}.py").read_text())
    assert set(here) == TWINS[name] | OWN[name]
    assert {twin: here[twin] for twin in TWINS[name]} == {twin: script[twin] for twin in TWINS[name]}


@pytest.mark.parametrize("name", TWINS)
def test_notebooks_are_kept_without_outputs(name: str) -> None:
    assert [cell.id for cell in read_notebook(f"{name}.ipynb").cells if cell.get("outputs")] == []


def shown(name: str, cwd: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Returns what its cells wrote, by the cell's id."""
    streams = run_notebook(f"{name}.ipynb", cwd, monkeypatch)
    return {cell: "".join(o.text for o in outputs if o.name == "stdout") for cell, outputs in streams.items()}


@full
@pytest.mark.procs
def test_the_tour_runs_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = shown("getting_started", tmp_path, monkeypatch)
    assert said["spawn"] == "4 actors in 4 other processes\n"
    assert said["call"] == "[11, 11, 11, 11] and at gpus=2: 11\n{'gpus': 0} has 11\n{'gpus': 1} has 11\n"
    assert said["slice"] == "[11, 11, 111, 111]\n112\n"
    *answers, total = said["stream"].splitlines()
    assert (sorted(map(int, answers)), total) == ([11, 11, 111, 112], "sum: 245")
    assert said["error"] == "ZeroDivisionError: division by zero\nstill there: 11.0\n"
    assert sorted(re.findall(r"I am rank (\d)", said["print"])) == list("0123")
    assert said["port"] == "3\n2\n1\n"
    assert said["concurrent"] == "went through\n"
    assert said["stop"] == "stopped\n"


@full
@needs_torch
@needs_matplotlib
@pytest.mark.slow
@pytest.mark.procs
def test_the_search_runs_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = shown("sweep", tmp_path, monkeypatch)
    assert said["spawn"] == "0 trials are done, 12 are left, 2 processes\n"
    assert re.search(r"^trial +7: failed .* AssertionError: embed_dim must be divisible", said["run"], re.MULTILINE)
    assert len(re.findall(r"^trial +\d+: ", said["run"], re.MULTILINE)) == 12
    assert re.match(r"\d\.\d{3}  lr ", said["best"])
    assert len((tmp_path / "sweep.jsonl").read_text().splitlines()) == 13


@full
@needs_torch
@needs_matplotlib
@pytest.mark.slow
@pytest.mark.procs
def test_grpo_runs_in_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    said = shown("grpo/actors", EXAMPLES / "grpo", monkeypatch)
    told = re.match(r"mean reward of prompts held out: (\S+) -> (\S+)\n", said["after"])
    assert told and float(told[2]) > float(told[1]) + 0.1, said["after"]
    assert "kill -9 of generator" in said["run"]
    assert said["stop"] == "stopped\n"


class Kernel:
    """A Jupyter kernel, as the buttons of a notebook drive one."""

    def __init__(self, manager: Any, client: Any) -> None:
        self.manager, self.client = manager, client

    def send(self, source: str) -> str:
        return str(self.client.execute(source))

    def result(self, request: str) -> tuple[str, str]:
        """Returns what the cell printed, and the name of what it raised."""
        printed, raised = "", ""
        while True:
            message = self.client.get_iopub_msg(timeout=TIMEOUT)
            kind, content = message["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") != request:
                continue
            if kind == "stream" and content["name"] == "stdout":
                printed += content["text"]
            elif kind == "error":
                raised = content["ename"]
            elif kind == "status" and content["execution_state"] == "idle":
                return printed, raised

    def run(self, source: str) -> tuple[str, str]:
        return self.result(self.send(source))


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    client_module = pytest.importorskip("jupyter_client", reason="the notebook tests need nbclient and ipykernel")
    pytest.importorskip("ipykernel", reason="the notebook tests need nbclient and ipykernel")
    manager = client_module.KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(tmp_path), env=environment())
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=TIMEOUT)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + TIMEOUT
    left = pids
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if os.path.exists(f"/proc/{pid}")]
        time.sleep(0.05)
    assert left == []


@full
@pytest.mark.procs
def test_a_cell_can_be_interrupted_and_the_kernel_restarted(kernel: Kernel) -> None:
    cells = {cell.id: cell.source for cell in read_notebook("getting_started.ipynb").cells}
    wanted = [cells[name] for name in ("imports", "actor", "gate", "spawn")]
    for source in wanted:
        assert kernel.run(source)[1] == ""
    waits = "gate = procs.slice(gpus=0).spawn('gate', Gate)\nprint('begins', flush=True)\nawait gate.wait.call_one()"
    request = kernel.send(waits)
    while True:  # it is under way when it has printed
        message = kernel.client.get_iopub_msg(timeout=TIMEOUT)
        if message["msg_type"] == "stream" and message["parent_header"].get("msg_id") == request:
            break
    kernel.manager.interrupt_kernel()
    assert kernel.result(request)[1] in ("KeyboardInterrupt", "CancelledError")
    assert kernel.run("print((await counters.add.call(1)).values())") == ("[11, 11, 11, 11]\n", "")
    pids = [int(pid) for pid in kernel.run("print(*pids)")[0].split()]
    assert len(pids) == 4
    kernel.manager.restart_kernel(now=False)
    kernel.client.wait_for_ready(timeout=TIMEOUT)
    wait_until_gone(pids)
    for source in wanted:
        printed, raised = kernel.run(source)
        assert raised == ""
    assert printed == "4 actors in 4 other processes\n"
