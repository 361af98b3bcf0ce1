"""Real process groups of torch.distributed that are stuck, or go on: what is said of them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from monarch._mesh.inspection import collectives, survey
from monarch.actor import Actor, endpoint, setup_torch_distributed
from monarch.admin import stacks, status
from monarch.admin.programs import program_at
from monarch.admin.screen import diagnostics, header
from monarch.admin.screen.sources import SocketSource
from monarch.admin.screen.words import Words
from monarch.dashboard.pages.api import PageData
from monarch.dashboard.pages.latest_findings import LatestFindings
from monarch.dashboard.pages.live_program import LiveProgram
from monarch.telemetry.store import Store
from tests.support.patience import TIMEOUT, until
from tests.support.tiers import full

pytestmark = [pytest.mark.procs, full]

ASTRAY = """
    import json, os, sys, threading
    import monarch._runtime.future as futures
    from monarch.actor import Actor, current_rank, diagnose, endpoint, setup_torch_distributed, this_host, wait_graph

    def gone_astray():
        threading.Event().wait()

    class Rank(Actor):
        @endpoint
        def sum(self):
            import torch
            import torch.distributed as dist
            value = torch.ones(3, 5)
            dist.all_reduce(value)
            if current_rank().rank == 2:
                gone_astray()
            dist.all_reduce(value)

    if __name__ == "__main__":
        procs = this_host().spawn_procs({"gpus": 3}, name="astray")
        setup_torch_distributed(procs, "gloo").get()
        answers = procs.spawn("rank", Rank).sum.call()
        if "error" in sys.argv:
            futures.LONG_WAIT = 4.0
            found = text = ""
            while not (found and found in text):
                found = next(iter(wait_graph(60).get().findings), "").partition(" (at ")[0]  # and for how long
                try:
                    answers.get(timeout=4)
                except TimeoutError as error:
                    text = str(error)
            print(found, flush=True)
            input()  # others look
            os._exit(0)
        while "log" not in sys.argv:
            findings = [f for f in diagnose(60).get().findings if f.kind == "collective"]
            if findings:
                found = findings[0]
                print(json.dumps([found.title, found.evidence, found.mesh, found.ranks, len(findings)]), flush=True)
                os._exit(0)
        answers.get()
"""


class Rank(Actor):
    @endpoint
    def sum(self) -> None:
        import torch
        import torch.distributed as dist

        value = torch.ones(3, 5)
        dist.all_reduce(value)
        dist.all_reduce(value)


def test_the_rank_that_has_not_entered_an_all_reduce(scripts: Any) -> None:
    title, evidence, mesh, ranks, count = json.loads(scripts.run(ASTRAY).stdout)
    assert title.startswith("ranks 0-1 wait in all_reduce #2 of group default_pg; rank 2 has not entered it (at ")
    assert "in gone_astray()" in title
    assert "the input of the all_reduce has the shape [3, 5]" in evidence
    assert (mesh, ranks, count) == ("astray", [2], 1)


def test_every_tool_says_the_same_sentence_of_a_hung_program(scripts: Any) -> None:
    """The error of a wait and the wait graph, as the program has them; then what looks at it from outside."""
    running = scripts.start(ASTRAY, "error")
    said = running.stdout.readline().strip()
    assert said == "ranks 0-1 wait in all_reduce #2 of group default_pg; rank 2 has not entered it"
    [pid] = scripts.runtime.rglob("pid")
    program, store = program_at(str(pid.parent)), Store()
    assert program is not None and program.pid == running.pid
    source, live = SocketSource(program), LiveProgram(program, store)

    def overview() -> str:
        data = PageData(store, live, findings=LatestFindings(live.diagnosis, aside=lambda look: look()))
        return str([concern["text"] for concern in data.summary()["concerns"]])

    def of_stacks() -> str:
        found = stacks.stacks_of(program, stacks.StacksQuery(None, TIMEOUT))
        return stacks.page(program, stacks.what_is_wrong(program, found, TIMEOUT), found)

    tools = {
        "monarch doctor": lambda: str(stacks.examine(program, TIMEOUT, 0.1)),
        "monarch status": lambda: status.page(status.status_of(program, TIMEOUT)),
        "monarch stacks": of_stacks,
        "monarch tui, above its tree": lambda: header.wrong("", source.doctor().findings, Words("en")),
        "monarch tui, d": lambda: str(diagnostics.run(source, time.monotonic).json()),
        "the dashboard's overview": overview,
    }
    try:
        for tool, look in tools.items():
            while said not in (shown := look()):  # a process that is slow to answer is found first
                assert running.poll() is None, f"{tool} says:\n{shown}"
    finally:
        store.close()


def test_the_log_of_a_long_endpoint_names_the_straggler(scripts: Any) -> None:
    program = scripts.start(ASTRAY, "log", env={"MONARCH_SLOW_HANDLER_AFTER": "1s"})
    if not any("in all_reduce #2 of group default_pg; rank 2 has not entered it" in line for line in program.stderr):
        pytest.fail("the rank that is missing was not named")


@pytest.mark.usefixtures("torch_preloaded")
def test_what_each_rank_tells_of_its_groups(spawn_procs: Any) -> None:
    procs = spawn_procs({"gpus": 2}, name="telling")
    setup_torch_distributed(procs, "gloo").get(TIMEOUT)
    procs.spawn("rank", Rank).sum.call().get(TIMEOUT)

    def asked() -> list[Any]:
        replies = survey.ask("collectives", timeout=TIMEOUT).get(TIMEOUT).replies
        told = [state for reply in replies.values() for state in collectives.decode_groups(reply)]
        return [state for state in told if state.ranks == [0, 1] and state.begun == 2]

    until(lambda: not any(state.running for state in asked()))  # torch notes the end behind the one who waits for it
    states = asked()
    assert sorted(state.rank for state in states) == [0, 1]
    assert {(state.label, state.operation, tuple(state.shape), state.running) for state in states} == {
        ("default_pg", "all_reduce", (3, 5), False)
    }
