"""Graphs as programs write them: nodes, which refer to those whose results they take. Nothing runs here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from monarch.actor import Endpoint
from monarch.actor._feeding import (
    EndpointFacts,
    check_bound,
    endpoint_facts,
    is_own,
)


class GraphNode:
    """A value that exists once the graph is executed: the input, a part of it, or what an endpoint returns."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} stands for a value of a graph and cannot be sent: give it to bind() as an argument of its own, not "
            f"inside of a list or another object. In place of bind([a, b]) write bind(a, b), for `def endpoint(self, *parts)`"
        )

    def __iter__(self) -> NoReturn:
        # Python would ask for x[0], x[1], ... without an end where there is only a __getitem__.
        raise TypeError(
            f"{self!r} stands for a value that is not there yet, so it cannot be iterated over or written with a *: "
            f"{self._parts}"
        )

    _parts = "an endpoint that takes it has the value, and can take it apart"


class InputNode(GraphNode):
    """The input of a graph: what is given to `execute`.

        with InputNode() as x:
            graph = compile(actor.step.bind(x))

    Given one argument, it is that. `x[0]`, `x["name"]` are single arguments, positional or by name, of a graph that takes
    several. Since 0.2.0.
    """

    _parts = "write x[0], x[1], ... for the arguments of execute()"

    def __enter__(self) -> InputNode:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def __getitem__(self, key: int | str) -> InputPart:
        if not isinstance(key, int | str):
            raise TypeError(f"a part of the input is the number or the name of an argument of execute(), got {key!r}")
        if isinstance(key, int) and key < 0:
            raise TypeError(
                f"the arguments of execute() are counted from 0, for their number is not known yet; got {key}"
            )
        return InputPart(self, key)

    def __repr__(self) -> str:
        return "InputNode()"


class InputPart(GraphNode):
    """One argument of `execute`."""

    def __init__(self, whole: InputNode, key: int | str) -> None:
        self.whole = whole
        self.key = key

    def __repr__(self) -> str:
        return f"{self.whole!r}[{self.key!r}]"


class EndpointNode(GraphNode):
    """An endpoint that each execution runs on every rank of its mesh. Made by `mesh.endpoint.bind(...)`.

    Whoever takes it gets the value itself of a mesh of one, and a ValueMesh of a larger one. `by_rank()` gives each rank of a
    mesh of the same size the value of the same rank. Since 0.2.0.
    """

    def __init__(
        self, endpoint: Endpoint[Any, Any], facts: EndpointFacts, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.endpoint = endpoint
        self.facts = facts
        self.args = args
        self.kwargs = kwargs

    def by_rank(self) -> ByRank:
        """The same values, of which each rank of the node that takes them gets that of its own number."""
        return ByRank(self)

    def __repr__(self) -> str:
        return f"{self.facts.label}.bind(...)"


class ByRank(GraphNode):
    """The results of a mesh, one for each rank of another."""

    def __init__(self, node: EndpointNode) -> None:
        self.node = node

    def __repr__(self) -> str:
        return f"{self.node!r}.by_rank()"


class MultiOutput:
    """Several nodes as the output of a graph: an execution gives a list of their values. Since 0.2.0."""

    def __init__(self, nodes: Sequence[EndpointNode]) -> None:
        if isinstance(nodes, GraphNode):
            raise TypeError(f"MultiOutput takes a list of nodes, such as MultiOutput([{nodes!r}]), got one node")
        self.nodes = list(nodes)

    def __repr__(self) -> str:
        return f"MultiOutput({self.nodes})"


def bind(endpoint: Endpoint[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> EndpointNode:
    """Does what `Endpoint.bind` says. ValueError for an endpoint that graphs cannot run."""
    facts = endpoint_facts(endpoint)
    if facts.why_not:
        raise ValueError(f"{facts.label} cannot be a node of a graph: {facts.why_not}")
    if is_own(facts):
        raise ValueError(f"{facts.label} is the actor that compiles the graph, and would wait for itself")
    check_bound(endpoint, args, kwargs)
    return EndpointNode(endpoint, facts, args, kwargs)
