"""The frames of a stream between two hosts of a graph, and what the plan says of hosts: explored without sockets."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.actor import Extent
from monarch.actor._feeding import EndpointFacts
from monarch.graph.crossing import Crossed, CrossingError, EdgeReceiver, EdgeSender, Heard, StreamEnd
from monarch.graph.hosts import PlanHosts, stream_reader, too_large
from monarch.graph.nodes import EndpointNode, InputNode, MultiOutput
from monarch.graph.plan import CLIENT, Written, make_plan

SLOT = 4000
CHUNK = 256


class Side:
    """The memory of one host, with a graph of `rings` and `depth`."""

    def __init__(self, rings: int, depth: int) -> None:
        self.depth = depth
        self.bytes = bytearray(rings * depth * SLOT)
        self.sizes: dict[tuple[int, int], int] = {}
        self.written = Written([0] * (rings * depth), depth)

    def slot(self, ring: int, slot: int) -> memoryview:
        start = (ring * self.depth + slot) * SLOT
        return memoryview(self.bytes)[start : start + SLOT]

    def value(self, ring: int, slot: int) -> memoryview:
        return self.slot(ring, slot)[: self.sizes[ring, slot]]

    def write(self, ring: int, number: int, slot: int, value: bytes) -> None:
        self.slot(ring, slot)[: len(value)] = value
        self.sizes[ring, slot] = len(value)
        self.written.write(ring, number, slot)


def value_of(ring: int, number: int, size: int) -> bytes:
    return random.Random(f"{ring} {number}").randbytes(size)


def move(sender: EdgeSender, receiver: EdgeReceiver, most: int, wire: bytearray, read: int) -> list[Any]:
    """Writes up to `most` bytes to the wire, as a socket with so much room takes them, and reads up to `read`."""
    taken = b"".join(sender.buffers())[:most]
    sender.sent(len(taken))
    wire += taken
    here = receiver.into()
    count = 0
    for place in here:
        part = wire[: min(len(place), read - count)]
        place[: len(part)] = part
        del wire[: len(part)]
        count += len(part)
    return receiver.received(count) if count else []


@settings(max_examples=60, deadline=None)
@given(
    depth=st.integers(1, 4),
    sizes=st.lists(st.lists(st.integers(16, SLOT), min_size=1, max_size=6), min_size=1, max_size=4),
    random=st.randoms(use_true_random=False),
)
def test_all_values_arrive_whole_in_their_order_however_bytes_are_cut(
    depth: int, sizes: list[list[int]], random: Any
) -> None:
    rings = list(range(len(sizes)))
    here, there = Side(len(rings), depth), Side(len(rings), depth)
    sender = EdgeSender(rings, here.written, here.value, CHUNK)
    receiver = EdgeReceiver(rings, [], depth, SLOT, there.slot)
    wire, arrived, begun = bytearray(), dict.fromkeys(rings, 0), dict.fromkeys(rings, 0)
    while any(arrived[ring] < len(sizes[ring]) for ring in rings):
        ring = random.choice(rings)
        # As the client does: a slot is used again once its value has been had.
        if begun[ring] < len(sizes[ring]) and begun[ring] - arrived[ring] < depth and random.random() < 0.5:
            number = begun[ring]
            begun[ring] += 1
            here.write(ring, number, number % depth, value_of(ring, number, sizes[ring][number]))
        for one in move(
            sender, receiver, random.choice((1, 7, 100, 10_000)), wire, random.choice((1, 30, 300, 70_000))
        ):
            assert isinstance(one, Crossed)
            assert one.number == arrived[one.ring]
            arrived[one.ring] += 1
            size = sizes[one.ring][one.number]
            assert there.slot(one.ring, one.slot)[:size] == value_of(one.ring, one.number, size)
    assert sender.idle
    assert not wire
    assert sender.buffers() == []


def test_a_small_value_waits_for_one_chunk_of_a_large_one() -> None:
    here, there = Side(2, 1), Side(2, 1)
    sender = EdgeSender([0, 1], here.written, here.value, CHUNK)
    receiver = EdgeReceiver([0, 1], [], 1, SLOT, there.slot)
    here.write(0, 0, 0, bytes(SLOT))
    first = sender.buffers()
    assert sum(map(len, first)) <= CHUNK + 64
    here.write(1, 0, 0, bytes(20))
    wire, found = bytearray(), list[Any]()
    while len(found) < 2:
        found += move(sender, receiver, 10_000, wire, 70_000)
        if len(found) == 1 and found[0].ring == 1:
            assert not sender.idle  # the large one is under way still
    assert found == [Crossed(1, 0, 0), Crossed(0, 0, 0)]


def test_the_client_hears_of_values_that_do_not_come_to_it_and_of_the_end() -> None:
    here, there = Side(3, 2), Side(3, 2)
    sender = EdgeSender([0], here.written, here.value)
    receiver = EdgeReceiver([0], [1, 2], 2, SLOT, there.slot)
    wire = bytearray()
    here.write(1, 0, 0, bytes(20))
    assert not sender.mark([1, 2], 1)  # ring 2 has nothing yet
    assert move(sender, receiver, 10_000, wire, 70_000) == [Heard(1, 0)]
    assert not sender.mark([1, 2], 1)
    assert sender.buffers() == []  # nothing new
    for ring, number in ((1, 1), (2, 0), (2, 1), (2, 2), (2, 3)):  # more than it has room for before it is looked at
        here.write(ring, number, number % 2, bytes(20))
    assert sender.mark([1, 2], 1)
    here.write(0, 0, 0, bytes(30))
    sender.end("it is over " + "x" * 5000)
    sender.end("twice")
    *heard, end = move(sender, receiver, 10_000, wire, 70_000)
    assert heard == [Heard(1, 1), Heard(2, 3)]
    assert isinstance(end, StreamEnd)
    assert end.reason.startswith("it is over xxx")
    assert len(end.reason) == 2000
    here.write(0, 1, 1, bytes(30))
    assert sender.buffers() == []
    assert receiver.ended


HEAD = struct.Struct("<BxHIQQI")


@pytest.mark.parametrize(
    "head",
    [
        (1, 0, 1, 0, 100, 10),  # a ring that does not come here
        (1, 0, 0, 1, 100, 10),  # not its turn
        (1, 2, 0, 0, 100, 10),  # no such slot
        (1, 0, 0, 0, SLOT + 1, 10),  # larger than a slot
        (1, 0, 0, 0, 100, 101),  # more than its value has
        (1, 0, 0, 0, 100, 0),  # nothing
        (2, 0, 0, 0, 0, 0),  # word of what comes itself
        (3, 0, 0, 0, 0, 1 << 20),  # an endless reason
        (0, 0, 0, 0, 0, 0),
        (255, 9, 9, 9, 9, 9),
    ],
)
def test_what_no_host_sends_is_refused_and_nothing_is_written(head: tuple[int, ...]) -> None:
    there = Side(2, 2)
    receiver = EdgeReceiver([0], [1], 2, SLOT, there.slot)
    place = receiver.into()[-1]
    place[: HEAD.size] = HEAD.pack(*head)
    place[HEAD.size : HEAD.size + 100] = b"x" * 100
    with pytest.raises(CrossingError):
        receiver.received(HEAD.size + 100)
    assert not any(there.bytes)


def test_a_value_that_changes_its_size_on_the_way_is_refused() -> None:
    there = Side(1, 2)
    receiver = EdgeReceiver([0], [], 2, SLOT, there.slot)
    for whole in [100, 99]:
        frame = HEAD.pack(1, 0, 0, 0, whole, 10) + bytes(10)
        receiver.into()[-1][: len(frame)] = frame
        if whole == 99:
            with pytest.raises(CrossingError, match="do not belong there"):
                receiver.received(len(frame))
        else:
            assert receiver.received(len(frame)) == []


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=2000))
def test_noise_is_refused_or_waited_for(noise: bytes) -> None:
    there = Side(2, 2)
    receiver = EdgeReceiver([0], [1], 2, SLOT, there.slot)
    try:
        while noise and not receiver.ended:
            count = 0
            for place in receiver.into():
                part = noise[: len(place)]
                place[: len(part)] = part
                noise = noise[len(part) :]
                count += len(part)
            receiver.received(count)
    except CrossingError:
        pass


# --- which host does what


def node(key: str, addresses: list[str], *args: Any) -> EndpointNode:
    facts = EndpointFacts(
        key,
        f"{key}.step",
        "step",
        tuple(range(len(addresses))),
        tuple(addresses),
        b"",
        Extent(["r"], [len(addresses)]),
        "",
    )
    endpoint: Any = None
    return EndpointNode(endpoint, facts, args, {})


A, B, OWN = "tcp://a:1/p.0", "tcp://b:1/p.0", "tcp://own:1/client.0"
NAMES = ["tcp://own:1", "tcp://a:1", "tcp://b:1"]


def test_each_host_has_its_rings_its_gate_and_its_streams() -> None:
    first = node("first", [A], InputNode())
    second = node("second", [B, OWN], first)
    last = node("last", [B], second)
    plan = make_plan(MultiOutput([last, first]), 2, 1)
    hosts = PlanHosts(plan, NAMES[0])
    assert hosts.names == NAMES
    assert hosts.gates == [CLIENT, 0, 1]
    # 0 the input, 1 first, 2 and 3 second, 4 last
    assert [hosts.crossing(here, there) for here in range(3) for there in range(3) if here != there] == [
        [0], [3], [1], [1], [4], [],
    ]  # fmt: skip
    assert hosts.rings(0)[0].readers == [stream_reader(1)]
    assert hosts.rings(1)[1].readers == [stream_reader(0), stream_reader(2)]
    assert hosts.rings(2)[1].readers == [1]
    assert hosts.rings(0)[1].readers == [2, CLIENT]
    assert hosts.awaiting(0) == {1: [2, CLIENT], 4: [CLIENT]}
    assert [hosts.dials(host) for host in range(3)] == [[1, 2], [2], []]
    assert (hosts.gate(2).tells, hosts.gate(0).hears) == ([2], {1: [], 2: [2]})
    control = plan.memory - 5 * 2 * plan.slot_size
    assert [hosts.memory(host) for host in range(3)] == [control + n * 2 * plan.slot_size for n in (4, 2, 4)]


def test_a_host_of_which_no_value_comes_to_the_client_has_a_stream_with_it() -> None:
    plan = make_plan(node("last", [A], node("middle", [B], node("first", [A], InputNode()))), 2, 1)
    hosts = PlanHosts(plan, NAMES[0])
    assert hosts.names == [NAMES[0], NAMES[1], NAMES[2]]
    assert hosts.dials(0) == [1, 2]
    assert hosts.gate(2).sends == {0: [], 1: [2]}
    assert hosts.gate(2).tells == [2]


def test_memory_is_asked_for_where_it_is_needed() -> None:
    hosts = PlanHosts(make_plan(node("a", [A], InputNode()), 2, "32MiB"), NAMES[0])
    spec = hosts.gate(1)
    assert not too_large(spec, 1 << 30, "tcp://a:1")
    assert not too_large(spec, 0, "tcp://a:1")
    why = too_large(spec, 10 << 20, "tcp://a:1")
    assert why.startswith(
        "the graph may need 128 MiB of shared memory (2 values, depth 2, buffer 32 MiB each), and tcp://a:1 has"
    )
    assert why.endswith("lower depth= or buffer=")
