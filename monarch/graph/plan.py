"""The plan of a graph: which actor runs what in which order, and which rings its values go through. Pure.

Each value has a ring of its own (that of the input, and one for each rank of each node), with one writer and as many readers
as take the value. An execution has a number and one slot, the same in all rings. Slots are given out by the client alone,
when an earlier execution has come out at the end; every node leads to the end, so by then nobody uses the slot any more. So
no writer ever waits for room, and no reader tells that it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from monarch.actor import Extent
from monarch.graph.nodes import ByRank, EndpointNode, GraphNode, InputNode, InputPart, MultiOutput

MOST_DEPTH = 1024
INPUT_RING = 0
CLIENT = -1  # as a reader
SMALLEST = 64 << 10  # bytes of a buffer: what every error fits into
_PAGE = 4096
_HEADER = 2 * _PAGE  # of a slot: lengths, and what aligning takes


class Place(NamedTuple):
    """An actor: the key of its mesh, its rank there, the address of its process."""

    key: str
    rank: int
    address: str


class Take(NamedTuple):
    """An argument that is made of values: of one ring, or (`extent`) of several as a ValueMesh; or `part` of the input."""

    rings: tuple[int, ...]
    extent: Extent | None = None
    part: int | str | None = None


@dataclass
class Step:
    """One rank of one node, as its actor runs it. `reads` are the rings it waits for, each once."""

    ring: int
    label: str
    method: str
    index: int
    view: bytes
    args: list[Any]
    kwargs: dict[str, Any]
    reads: tuple[int, ...]


@dataclass
class Ring:
    """`label` says whose value it carries, `reads` how many steps take it, the client counted; `readers` are the actors'
    numbers."""

    label: str
    rank: int
    reads: int = 0
    readers: list[int] = field(default_factory=list)


class GraphOutput(NamedTuple):
    """A value of the output: its rings and, of a mesh, its extent; the label for errors."""

    label: str
    rings: tuple[int, ...]
    extent: Extent | None


@dataclass
class Plan:
    """`steps[i]` are those of `places[i]`, in the order of the graph. `nodes` in that order too."""

    depth: int
    slot_size: int
    buffer: int
    places: list[Place]
    steps: list[list[Step]]
    rings: list[Ring]
    outputs: list[GraphOutput]
    several: bool  # the output is a list
    parts: tuple[int | str, ...]  # arguments of execute() that are taken, where not its only one as a whole
    nodes: list[EndpointNode]

    @property
    def memory(self) -> int:
        """Bytes of the file of each host: pages are taken when they are first used."""
        return control_size(len(self.rings), self.depth) + len(self.rings) * self.depth * self.slot_size

    def takes(self) -> tuple[int, frozenset[str]]:
        """Returns how many arguments by place, and which by name, execute() takes, where it takes parts of its input."""
        places = [part for part in self.parts if isinstance(part, int)]
        return max(places, default=-1) + 1, frozenset(part for part in self.parts if isinstance(part, str))

    def sources(self) -> tuple[int, ...]:
        """The rings that the client reads."""
        return tuple(dict.fromkeys(ring for output in self.outputs for ring in output.rings))


def control_size(rings: int, depth: int) -> int:
    """Bytes of the control area: a word that says that the graph has ended, and a word an execution of each ring."""
    return _pages(8 * (1 + rings * depth))


def _pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def parse_size(buffer: int | str) -> int:
    """Reads bytes, or text such as "64MiB". ValueError for anything else."""
    wrong = f'invalid buffer {buffer!r}: expected a number of bytes above 0, or text with K, M, G or no unit, such as "64MiB"'
    if isinstance(buffer, str):
        number = buffer.strip().rstrip("BbIiKkMmGg").strip()
        unit = buffer.strip()[len(number) :].strip().lower().removesuffix("ib").removesuffix("b")
        if unit not in ("", "k", "m", "g") or not number.replace(".", "", 1).isdecimal():
            raise ValueError(wrong)
        return int(float(number) * 1024 ** ("", "k", "m", "g").index(unit))
    if isinstance(buffer, bool) or not isinstance(buffer, int) or buffer <= 0:
        raise ValueError(wrong)
    return buffer


def make_plan(output: EndpointNode | MultiOutput, depth: int, buffer: int | str) -> Plan:
    """Plans the graph that leads to `output`. ValueError or TypeError say what is wrong with it."""
    if isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth <= MOST_DEPTH:
        raise ValueError(f"invalid depth {depth!r}: expected how many executions may be under way, 1 to {MOST_DEPTH}")
    size = parse_size(buffer)
    planner = _Planner(output)
    return Plan(
        depth,
        _pages(max(size, SMALLEST) + _HEADER),
        size,
        planner.places,
        planner.steps,
        planner.rings,
        planner.outputs,
        isinstance(output, MultiOutput),
        tuple(planner.parts),
        planner.nodes,
    )


class _Planner:
    def __init__(self, output: Any) -> None:
        self.places: list[Place] = []
        self.steps: list[list[Step]] = []
        self.rings = [Ring("the input", 0)]
        self.nodes: list[EndpointNode] = []
        self.outputs: list[GraphOutput] = []
        self.parts: dict[int | str, None] = {}
        self._input: InputNode | None = None
        self._whole = False
        self._numbers: dict[tuple[str, int], int] = {}
        self._first: dict[EndpointNode, int] = {}  # the ring of its rank 0; the others follow
        nodes = output.nodes if isinstance(output, MultiOutput) else [output]
        if not nodes:
            raise ValueError("MultiOutput needs at least one node")
        for node in nodes:
            if not isinstance(node, EndpointNode):
                raise TypeError(
                    f"the output of a graph is what an endpoint returns, mesh.endpoint.bind(...); got {node!r}"
                )
            self._visit(node)
            rings = self._rings_of(node)
            self.outputs.append(GraphOutput(node.facts.label, rings, _extent(node)))
        for ring in dict.fromkeys(ring for made in self.outputs for ring in made.rings):
            self._read(ring, CLIENT)
        if self._input is None:
            raise ValueError("the graph takes no input: bind an InputNode() to the endpoints that begin it")
        if self.parts and self._whole:
            raise ValueError(
                "the graph takes its input as a whole and in parts: use x[0], x[1], ... or x['name'] everywhere, or x alone"
            )

    def _visit(self, last: EndpointNode) -> None:
        """Adds the nodes that lead to `last`, each after those it takes; without recursion, for chains may be long."""
        waiting, above = [last], set()
        while waiting:
            node = waiting[-1]
            if node in self._first:
                waiting.pop()
                continue
            missing = [taken for taken in _taken(node) if taken not in self._first]
            if not missing:
                self._add(node)
                above.discard(node)
                waiting.pop()
                continue
            above.add(node)
            if any(taken in above for taken in missing):
                raise ValueError(f"the graph has a cycle through {node!r}: a result cannot lead to itself")
            waiting.extend(missing)

    def _add(self, node: EndpointNode) -> None:
        if not any(isinstance(value, GraphNode) for value in (*node.args, *node.kwargs.values())):
            raise ValueError(f"{node!r} takes neither the input nor a result of the graph: nothing would make it run")
        facts = node.facts
        first = self._first[node] = len(self.rings)
        self.rings += [Ring(facts.label, index) for index in range(len(facts.ranks))]
        for index, (rank, address) in enumerate(zip(facts.ranks, facts.addresses, strict=True)):
            number = self._number(Place(facts.key, rank, address))
            args = [self._argument(value, index, node) for value in node.args]
            kwargs = {name: self._argument(value, index, node) for name, value in node.kwargs.items()}
            taken = [value for value in (*args, *kwargs.values()) if isinstance(value, Take)]
            reads = tuple(dict.fromkeys(ring for value in taken for ring in value.rings))
            for ring in reads:
                self._read(ring, number, sum(ring in value.rings for value in taken))
            self.steps[number].append(
                Step(first + index, facts.label, facts.method, index, facts.view, args, kwargs, reads)
            )
        self.nodes.append(node)

    def _number(self, place: Place) -> int:
        number = self._numbers.get(place[:2])
        if number is None:
            number = self._numbers[place[:2]] = len(self.places)
            self.places.append(place)
            self.steps.append([])
        return number

    def _argument(self, value: Any, index: int, taker: EndpointNode) -> Any:
        match value:
            case InputNode():
                self._take_input(value)
                self._whole = True
                return Take((INPUT_RING,))
            case InputPart():
                self._take_input(value.whole)
                self.parts[value.key] = None
                return Take((INPUT_RING,), part=value.key)
            case EndpointNode():
                return Take(self._rings_of(value), _extent(value))
            case ByRank():
                rings = self._rings_of(value.node)
                if len(rings) != len(taker.facts.ranks):
                    raise ValueError(
                        f"{value!r} has {len(rings)} ranks, and {taker.facts.label} that takes it has "
                        f"{len(taker.facts.ranks)}: they have to be as many"
                    )
                return Take((rings[index],))
            case MultiOutput():
                raise TypeError("MultiOutput is for the end of a graph: bind its nodes one by one")
        return value

    def _take_input(self, node: InputNode) -> None:
        if self._input is not None and self._input is not node:
            raise ValueError("the graph has two InputNodes: use one, and x[0], x[1] for several arguments of execute()")
        self._input = node

    def _rings_of(self, node: EndpointNode) -> tuple[int, ...]:
        first = self._first[node]
        return tuple(range(first, first + len(node.facts.ranks)))

    def _read(self, ring: int, reader: int, times: int = 1) -> None:
        made = self.rings[ring]
        made.reads += times
        if reader not in made.readers:
            made.readers.append(reader)


def _taken(node: EndpointNode) -> list[EndpointNode]:
    found = []
    for value in (*node.args, *node.kwargs.values()):
        node_of = value.node if isinstance(value, ByRank) else value
        if isinstance(node_of, EndpointNode):
            found.append(node_of)
    return found


def _extent(node: EndpointNode) -> Extent | None:
    return None if len(node.facts.ranks) == 1 else node.facts.extent


class Turns:
    """The choice of what an actor runs next: of the steps whose values are there the one of the oldest execution and, of one
    execution, the first in the order of the graph. So a step runs its executions in their order, and results that lead to the
    end go before new work."""

    def __init__(self, reads: Sequence[Sequence[int]]) -> None:
        self._reads = [tuple(rings) for rings in reads]
        self.next = [0] * len(reads)  # the number of the next execution of each step

    def due(self, written: Written) -> tuple[int, int] | None:
        """Returns (step, execution), or None while nothing is due."""
        words, depth = written.words, written.depth
        found, oldest = -1, 0
        for step, number in enumerate(self.next):
            if found >= 0 and number >= oldest:
                continue
            place = number % depth
            for ring in self._reads[step]:
                if words[ring * depth + place] >> SLOT_BITS != number + 1:
                    break
            else:
                found, oldest = step, number
        return None if found < 0 else (found, oldest)

    def done(self, step: int) -> None:
        self.next[step] += 1


class Written:
    """Says whether an execution's value is in a ring; `words[ring * depth + number % depth]` has the last that is."""

    __slots__ = ("depth", "words")

    def __init__(self, words: Any, depth: int) -> None:
        self.words = words
        self.depth = depth

    def __call__(self, ring: int, number: int) -> bool:
        return bool(self.words[ring * self.depth + number % self.depth] >> SLOT_BITS == number + 1)

    def all(self, rings: Sequence[int], number: int) -> bool:
        """Says so of several rings."""
        words, depth = self.words, self.depth
        place, wanted = number % depth, number + 1
        for ring in rings:  # noqa: SIM110 - a generator costs more than the rest
            if words[ring * depth + place] >> SLOT_BITS != wanted:
                return False
        return True

    def newest(self, ring: int) -> int:
        """The last execution whose value was written there; -1 before the first. They come in their order."""
        start = ring * self.depth
        return max(int(word) >> SLOT_BITS for word in self.words[start : start + self.depth]) - 1

    def slot(self, ring: int, number: int) -> int:
        """The slot that it is in."""
        return int(self.words[ring * self.depth + number % self.depth]) & (1 << SLOT_BITS) - 1

    def write(self, ring: int, number: int, slot: int) -> None:
        """Tells readers of the value: the last thing that its writer does, one store."""
        self.words[ring * self.depth + number % self.depth] = number + 1 << SLOT_BITS | slot


SLOT_BITS = 16


class Slots:
    """The executions under way, as the client keeps them: at most `depth`, each with a slot of its own, done in their
    order."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.begun = 0  # executions
        self.done = 0
        self._free = list(range(depth))

    @property
    def full(self) -> bool:
        return self.begun - self.done >= self.depth

    def begin(self, lent: Any = ()) -> tuple[int, int]:
        """Returns the number of a new execution and its slot: the lowest that is free, which caches know; one that is in
        `lent` only where all are."""
        if self.full:
            raise ValueError("as many executions are under way as the depth allows")
        slot = heappop(self._free)
        if slot in lent:
            others = [free for free in self._free if free not in lent]
            if others:
                heappush(self._free, slot)
                slot = min(others)
                self._free.remove(slot)
                heapify(self._free)
        number = self.begun
        self.begun += 1
        return number, slot

    def undo(self, slot: int) -> None:
        """Takes the last `begin` back."""
        self.begun -= 1
        heappush(self._free, slot)

    def finish(self, slot: int) -> None:
        """The oldest has come out at the end."""
        heappush(self._free, slot)  # first: another thread may begin one
        self.done += 1
