"""Compiled graphs: endpoints that are called again and again in the same order, without a message for each call.

    with InputNode() as x:
        last = b.step.bind(a.step.bind(x))
    with compile(last, depth=8) as graph:
        futures = [graph.execute(item) for item in items]

`nodes.py` is how a program writes a graph, `plan.py` decides who runs what when (pure), `memory.py` and `bells.py` are the
shared memory and the waking, `driver.py` is an actor's part, `compiled.py` the client's, with `joining.py`, its beginning,
`execution.py`, one execution, and `line.py`, tasks that wait for room. Between hosts: `hosts.py` says what goes where,
`crossing.py` has the frames of a stream (both pure), `gate.py` the sockets.
"""

from __future__ import annotations

from monarch.graph.compiled import CompiledGraph, compile
from monarch.graph.nodes import EndpointNode, GraphNode, InputNode, MultiOutput

__all__ = ["CompiledGraph", "EndpointNode", "GraphNode", "InputNode", "MultiOutput", "compile"]
