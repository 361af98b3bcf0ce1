"""Endpoints that stand still and have no breakpoint: what the debugger's list says of them below its table. Pure."""

from __future__ import annotations

from collections.abc import Container

from monarch._mesh.inspection.wait_graph import WaitGraph

PATIENCE = 60.0  # seconds from which on an endpoint is shown
_MOST = 20
_OWN = "monarch.debugger.controller.DebugController"  # which waits for people


def lines(graph: WaitGraph, patience: float, at_breakpoints: Container[str]) -> list[str]:
    """For endpoints that have run for longer than `patience`. `at_breakpoints`: processes that are in the table."""
    slow = [
        one
        for one in graph.handlers
        if one.seconds >= patience and one.address not in at_breakpoints and _OWN not in one.who
    ]
    silent = [f"  {address}: {why}" for address, why in graph.silent.items()]
    found = []
    if slow:
        found += ["", f"without a breakpoint, and busy for {patience:g} s or longer:"]
        found += [f"  {one}" for one in slow[:_MOST]]
        if len(slow) > _MOST:
            found.append(f"  and {len(slow) - _MOST} more (monarch status shows all)")
    if silent:
        found += ["", "processes that did not answer:", *silent[:_MOST]]
        if len(silent) > _MOST:
            found.append(f"  and {len(silent) - _MOST} more")
    return found
