"""Tests of what the debugger's list says below its table."""

from __future__ import annotations

from monarch._mesh.failures.activity import RunningHandler
from monarch._mesh.inspection.wait_graph import WaitGraph
from monarch.debugger.controller import stuck_lines


def handler(rank: int, seconds: float) -> RunningHandler:
    return RunningHandler(
        f"trainers{rank}", rank, "node", 100 + rank, f"p.{rank}", "step", seconds, "train.py", 88, "step"
    )


def test_nothing_to_say() -> None:
    assert stuck_lines(WaitGraph([], [handler(0, 59.0)], {}), 60.0, []) == []


def test_the_debugger_itself_is_left_out() -> None:
    who = "<root>.<monarch.debugger.controller.DebugController debug_controller>"
    own = RunningHandler(who, 0, "node", 1, "client", "debugger_read", 500.0, "", 0, "")
    assert stuck_lines(WaitGraph([], [own], {}), 60.0, []) == []


def test_endpoints_and_processes() -> None:
    graph = WaitGraph([], [handler(rank, 100.0 - rank) for rank in range(30)], {"p.99": "did not answer"})
    lines = stuck_lines(graph, 60.0, ["p.0"])
    assert lines[:2] == ["", "without a breakpoint, and busy for 60 s or longer:"]
    assert "trainers1 (rank 1, host node, pid 101) has been running step() for 99.0 s, at train.py:88" in lines[2]
    assert "  and 9 more (monarch status shows all)" in lines
    assert lines[-2:] == ["processes that did not answer:", "  p.99: did not answer"]
