"""The plan of a graph, and what it promises of rings without locks: explored by random programs in random order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.actor import Extent
from monarch.actor._feeding import EndpointFacts
from monarch.graph.nodes import EndpointNode, GraphNode, InputNode, MultiOutput
from monarch.graph.plan import CLIENT, INPUT_RING, Slots, Step, Take, Turns, Written, make_plan, parse_size

ENDPOINT: Any = None


def node(key: str, *args: Any, ranks: int = 1, **kwargs: Any) -> EndpointNode:
    facts = EndpointFacts(
        key, f"{key}.step", "step", tuple(range(ranks)), ("unix:/a/1.0",) * ranks, b"", Extent(["r"], [ranks]), ""
    )
    return EndpointNode(ENDPOINT, facts, args, kwargs)


def plan_of(output: Any, depth: int = 2, buffer: int | str = 1) -> Any:
    return make_plan(output, depth, buffer)


def test_a_chain() -> None:
    first = node("a", InputNode(), 5)
    plan = plan_of(node("b", x=first))
    assert [(ring.label, ring.reads, ring.readers) for ring in plan.rings] == [
        ("the input", 1, [0]), ("a.step", 1, [1]), ("b.step", 1, [CLIENT]),
    ]  # fmt: skip
    (one,), (two,) = plan.steps
    assert (one.args, one.kwargs, one.reads, one.ring) == ([Take((INPUT_RING,)), 5], {}, (INPUT_RING,), 1)
    assert (two.args, two.kwargs, two.reads, two.ring) == ([], {"x": Take((1,))}, (1,), 2)


def test_a_mesh_runs_on_each_rank_and_is_taken_whole_or_by_rank() -> None:
    many = node("a", InputNode(), ranks=3)
    each = node("b", many.by_rank(), ranks=3)
    plan = plan_of(node("c", many, each))
    assert [steps[0].args for steps in plan.steps[3:6]] == [[Take((1,))], [Take((2,))], [Take((3,))]]
    extent = Extent(["r"], [3])
    assert plan.steps[6][0].args == [Take((1, 2, 3), extent), Take((4, 5, 6), extent)]
    assert [ring.reads for ring in plan.rings] == [3, 2, 2, 2, 1, 1, 1, 1]


def test_an_actor_has_its_steps_in_the_order_of_the_graph() -> None:
    forward = node("a", InputNode())
    plan = plan_of(node("a", node("b", forward)))
    assert [place.key for place in plan.places] == ["a", "b"]
    assert [step.ring for step in plan.steps[0]] == [1, 3]


def test_a_value_that_a_step_takes_twice_counts_twice() -> None:
    x = InputNode()
    assert plan_of(node("a", x, x)).rings[INPUT_RING].reads == 2


def test_several_outputs() -> None:
    x = InputNode()
    plan = plan_of(MultiOutput([node("a", x), node("b", x, ranks=2)]))
    assert plan.several
    assert [output.rings for output in plan.outputs] == [(1,), (2, 3)]
    assert plan.sources() == (1, 2, 3)


def circle() -> EndpointNode:
    first = node("a", InputNode())
    second = node("b", first)
    first.args = (second,)
    return second


TWO = InputNode()


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (circle, ValueError, "cycle through a.step.bind"),
        (lambda: node("a", 1), ValueError, "a.step.bind(...) takes neither the input"),
        (InputNode, TypeError, "the output of a graph is what an endpoint returns"),
        (lambda: MultiOutput([]), ValueError, "at least one node"),
        (lambda: node("a", InputNode(), InputNode()), ValueError, "two InputNodes"),
        (lambda: node("a", TWO, TWO[0]), ValueError, "as a whole and in parts"),
        (lambda: node("b", node("a", TWO, ranks=2).by_rank(), ranks=3), ValueError, "has 2 ranks, and b.step that"),
        (lambda: node("a", MultiOutput([node("b", TWO)]), TWO), TypeError, "MultiOutput is for the end"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(make: Any, kind: Any, said: str) -> None:
    with pytest.raises(kind) as failed:
        plan_of(make())
    assert said in str(failed.value)


def test_depth_and_memory_are_bounded() -> None:
    for depth in (0, 1025, True, 2.0):
        with pytest.raises(ValueError, match="invalid depth"):
            plan_of(node("a", InputNode()), depth=depth)  # type: ignore[arg-type]
    plan = plan_of(node("a", InputNode()), buffer="32MiB")
    assert plan.memory == 4096 + 4 * plan.slot_size


@pytest.mark.parametrize(
    ("text", "size"), [("64MiB", 64 << 20), ("1.5 k", 1536), ("2GB", 2 << 30), ("100", 100), (7, 7)]
)
def test_sizes(text: int | str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("wrong", ["", "MiB", "1 TiB", "-1", 0, -1, True, 1.5])
def test_no_sizes(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"invalid buffer.*above 0, or text with K, M, G or no unit"):
        parse_size(wrong)


def test_a_node_cannot_be_sent() -> None:
    import pickle

    with pytest.raises(TypeError, match=r"stands for a value of a graph.*not inside of a list.*write bind\(a, b\)"):
        pickle.dumps([InputNode()])


@pytest.mark.parametrize("each", [InputNode(), InputNode()[0], node("a", InputNode())])
def test_a_node_is_not_iterated_for_ever(each: GraphNode) -> None:
    with pytest.raises(TypeError, match="cannot be iterated over or written with a \\*"):
        node("b", *each)


def test_arguments_are_not_counted_from_the_end() -> None:
    with pytest.raises(TypeError, match="counted from 0"):
        InputNode()[-1]


def test_one_node_is_no_list_of_several() -> None:
    one = node("a", InputNode())
    with pytest.raises(TypeError, match=r"such as MultiOutput\(\[a\.step\.bind\(\.\.\.\)\]\), got one node"):
        MultiOutput(one)  # type: ignore[arg-type]
    assert repr(MultiOutput([one])) == "MultiOutput([a.step.bind(...)])"


def test_the_oldest_execution_goes_first_and_of_one_the_first_step() -> None:
    turns = Turns([(0,), (1,)])
    written = Written([0] * 4, 2)
    assert turns.due(written) is None
    written.write(0, 0, 0)
    written.write(0, 1, 1)
    assert turns.due(written) == (0, 0)
    turns.done(0)
    assert turns.due(written) == (0, 1)
    written.write(1, 0, 0)
    assert turns.due(written) == (1, 0)  # what leads to the end of an older one, before new work
    turns.done(1)
    assert turns.due(written) == (0, 1)


def test_slots_are_the_lowest_that_nobody_uses() -> None:
    slots = Slots(3)
    assert [slots.begin(), slots.begin({1}), slots.begin()] == [(0, 0), (1, 2), (2, 1)]
    assert slots.full
    with pytest.raises(ValueError, match="as many"):
        slots.begin()
    slots.finish(0)
    assert slots.begin({0}) == (3, 0)  # used by somebody, who gets a copy: there is no other
    slots.undo(0)
    assert slots.begin() == (3, 0)


@st.composite
def programs(draw: Any) -> tuple[Any, int]:
    """A random graph over a few actors, some of which have several of its nodes; and its depth."""
    x = InputNode()
    made: list[GraphNode] = [x]
    for _ in range(draw(st.integers(1, 6))):
        taken = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3))
        key = draw(st.sampled_from("abc"))
        ranks = draw(st.integers(1, 2))
        made.append(node(f"{key}{ranks}", *taken, ranks=ranks))
    last = node("z", *made)  # all lead to the end
    return MultiOutput([last]), draw(st.integers(1, 4))


class Explored:
    """The processes of a graph as a memory that they share and single steps: any of them may take the next one. A step reads
    its values at the beginning and, as an endpoint that has views of them, again at the end."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan
        self.written = Written([0] * (len(plan.rings) * plan.depth), plan.depth)
        self.memory: dict[tuple[int, int], Any] = {}
        self.turns = [Turns([step.reads for step in steps]) for steps in plan.steps]
        self.running: list[tuple[Step, int, dict[int, Any]] | None] = [None] * len(plan.steps)
        self.slots = Slots(plan.depth)
        self.under_way: list[tuple[int, int]] = []
        self.results: list[Any] = []

    def read(self, ring: int, number: int) -> Any:
        found = self.memory[ring, self.written.slot(ring, number)]
        assert found[:2] == (ring, number), "a value of another execution"
        return found

    def begin(self) -> bool:
        if self.slots.full:
            return False
        number, slot = self.slots.begin()
        self.memory[INPUT_RING, slot] = (INPUT_RING, number, ())
        self.written.write(INPUT_RING, number, slot)
        self.under_way.append((number, slot))
        return True

    def collect(self) -> bool:
        if not self.under_way:
            return False
        number, slot = self.under_way[0]
        if not all(self.written(ring, number) for ring in self.plan.sources()):
            return False
        self.results.append([self.read(ring, number) for ring in self.plan.sources()])
        self.slots.finish(slot)
        del self.under_way[0]
        return True

    def act(self, actor: int) -> bool:
        running = self.running[actor]
        if running is None:
            due = self.turns[actor].due(self.written)
            if due is None:
                return False
            step = self.plan.steps[actor][due[0]]
            self.turns[actor].done(due[0])
            self.running[actor] = step, due[1], {ring: self.read(ring, due[1]) for ring in step.reads}
            return True
        step, number, values = running
        assert {ring: self.read(ring, number) for ring in step.reads} == values, "overwritten while it was used"
        slot = self.written.slot(step.reads[0], number)
        self.memory[step.ring, slot] = (step.ring, number, tuple(values.values()))
        self.written.write(step.ring, number, slot)
        self.running[actor] = None
        return True


@settings(max_examples=150, deadline=None)
@given(programs(), st.randoms(use_true_random=False))
def test_no_value_is_overwritten_while_somebody_needs_it_and_all_executions_end(
    program: tuple[Any, int], random: Any
) -> None:
    output, depth = program
    explored = Explored(plan_of(output, depth=depth))
    wanted = 3 * depth + 2
    while len(explored.results) < wanted:
        moves = [explored.collect, *(lambda actor=actor: explored.act(actor) for actor in range(len(explored.turns)))]
        if explored.slots.begun < wanted:
            moves.append(explored.begin)
        random.shuffle(moves)
        assert any(move() for move in moves), "nobody can go on"
    assert [result[0][1] for result in explored.results] == list(range(wanted))
