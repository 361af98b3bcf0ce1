"""The counting of references against a model: whatever order what processes tell arrives in, a value that somebody can still
get is there, and once nobody can, nothing is left of it."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch.references.counting import HolderTable, LocalHandles, Process, RefId, Ticket

OWNER, A, B, C = ("owner", 0), ("a", 0), ("b", 0), ("c", 0)
PUT = RefId("owner", "", 1, 0)
KEPT = RefId("a", "actor", 1, 0)


def test_a_value_is_freed_with_its_last_holder() -> None:
    table = HolderTable()
    table.create(PUT, OWNER)
    assert table.made(PUT)
    table.lend(PUT, Ticket(OWNER, 1), ["a"])
    table.release(PUT, OWNER)
    assert table.freed == []
    assert table.claim(PUT, A, Ticket(OWNER, 1))
    assert table.holders(PUT) == {A}
    table.release(PUT, A)
    assert table.freed == [PUT]
    assert table.is_clean


def test_a_receiver_may_be_faster_than_the_sender() -> None:
    table = HolderTable()
    table.create(KEPT, A)
    assert table.made(KEPT)
    assert table.claim(KEPT, B, Ticket(A, 5))
    table.release(KEPT, B)
    table.lend(KEPT, Ticket(A, 5), ["b"])
    assert table.freed == []
    table.release(KEPT, A)
    assert table.freed == [KEPT]
    assert table.is_clean


def test_a_call_may_be_faster_than_word_of_its_reference() -> None:
    table = HolderTable()
    assert table.made(KEPT)
    table.create(KEPT, A)
    table.release(KEPT, A)
    assert table.freed == [KEPT]
    assert table.is_clean


def test_a_value_that_nobody_wants_any_more_is_not_kept() -> None:
    table = HolderTable()
    table.create(KEPT, A)
    table.release(KEPT, A)
    assert table.freed == [KEPT]
    assert not table.is_clean
    assert not table.made(KEPT)
    assert table.is_clean


def test_what_was_on_its_way_to_a_deadends_with_it() -> None:
    table = HolderTable()
    table.create(PUT, OWNER)
    table.made(PUT)
    table.lend(PUT, Ticket(OWNER, 1), ["a", "b"])
    table.release(PUT, OWNER)
    table.claim(PUT, A, Ticket(OWNER, 1))
    table.address_ended("b")
    table.ended(A)
    assert table.freed == [PUT]
    assert table.is_clean


@pytest.mark.parametrize("heard", [False, True])
def test_the_last_claim_of_a_dead_process_may_come_after_word_of_its_end(heard: bool) -> None:
    table = HolderTable()
    table.create(PUT, OWNER)
    assert table.made(PUT)
    table.lend(PUT, Ticket(OWNER, 1), ["a"])
    table.address_ended("a")
    if heard:
        table.ended(A)
    table.claim(PUT, A, Ticket(OWNER, 1))
    table.ended(A)  # who begins to watch it is told so
    table.release(PUT, OWNER)
    assert table.freed == [PUT]
    assert table.is_clean


def test_what_a_deadsent_before_its_end_is_not_new() -> None:
    table = HolderTable()
    table.ended(A)
    table.create(KEPT, A)
    table.lend(KEPT, Ticket(A, 1), ["b"])
    assert KEPT not in table
    assert not table.claim(KEPT, B, Ticket(A, 1))
    assert table.is_clean


def test_a_message_is_claimed_by_each_of_its_receivers() -> None:
    table = HolderTable()
    table.create(PUT, OWNER)
    table.made(PUT)
    table.lend(PUT, Ticket(OWNER, 1), ["a", "a", "b"])  # two actors in one process
    table.release(PUT, OWNER)
    for holder in (A, B):
        table.claim(PUT, holder, Ticket(OWNER, 1))
        table.release(PUT, holder)
    assert table.freed == []
    table.claim(PUT, A, Ticket(OWNER, 1))
    table.release(PUT, A)
    assert table.freed == [PUT]


def test_a_claim_on_what_was_freed_says_so() -> None:
    table = HolderTable()
    table.create(PUT, OWNER)
    table.release(PUT, OWNER)
    assert not table.claim(PUT, A, Ticket(B, 1))


def test_the_last_handle_of_a_deadis_the_one_that_counts() -> None:
    handles = LocalHandles()
    handles.added(PUT)
    handles.added(PUT)
    assert not handles.dropped(PUT)
    assert handles.dropped(PUT)
    assert len(handles) == 0


class World:
    """Processes that hold, send and drop one owner's references, and end; messages between any two come in order, else in any
    order."""

    def __init__(self) -> None:
        self.table = HolderTable()
        self.handles = {process: LocalHandles() for process in (OWNER, A, B, C)}
        self.told: dict[Process, deque[tuple[Any, ...]]] = {process: deque() for process in self.handles}
        self.mail: dict[tuple[Process, Process], deque[tuple[RefId, Ticket]]] = {}
        self.calls: deque[tuple[RefId, Process]] = deque()  # whose values are to be made
        self.dead: set[Process] = set()
        self.values: set[RefId] = set()
        self.excused: set[RefId] = set()  # that a death may have lost
        self.numbers = 0

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.handles if process not in self.dead]

    def held(self, process: Process) -> list[RefId]:
        return sorted(self.handles[process]._counts)

    def name(self, process: Process) -> None:
        self.numbers += 1
        if process == OWNER:
            ref = RefId("owner", "", self.numbers, 0)
            self.table.create(ref, OWNER)
            self.table.made(ref)
            self.values.add(ref)
            self.handles[OWNER].added(ref)
            return
        ref = RefId(process[0], "actor", self.numbers, 0)
        self.calls.append((ref, process))
        self.handles[process].added(ref)
        self.tell(process, "create", ref)

    def tell(self, process: Process, what: str, ref: RefId, *facts: Any) -> None:
        self.told[process].append((what, ref, *facts))
        if process == OWNER:
            self.hear(OWNER)

    def hear(self, process: Process) -> None:
        what, ref, *facts = self.told[process].popleft()
        if what == "create":
            self.table.create(ref, process)
        elif what == "claim":
            assert self.table.claim(ref, process, *facts) or ref in self.excused, f"{ref} was claimed and is gone"
            if not self.table.is_named(ref) and ref.process in [dead[0] for dead in self.dead]:
                self.table.address_ended(ref.process)
        elif what == "lend":
            self.table.lend(ref, *facts)
            for dead in self.dead:  # who begins to watch a process that has ended is told so
                self.table.address_ended(dead[0])
        else:
            self.table.release(ref, process)
        if process in self.dead:  # the shell begins to watch it again
            self.table.ended(process)
        self.free()

    def free(self) -> None:
        freed, self.table.freed = self.table.freed, []
        self.values -= set(freed)

    def make(self) -> None:
        ref, process = self.calls.popleft()
        if self.table.made(ref):
            self.values.add(ref)
            if process in self.dead:  # the shell is told of its end at once when it begins to watch it
                self.table.address_ended(process[0])
                self.free()

    def send(self, sender: Process, receivers: list[Process], ref: RefId) -> None:
        self.numbers += 1
        ticket = Ticket(sender, self.numbers)
        self.tell(sender, "lend", ref, ticket, [receiver[0] for receiver in receivers])
        for receiver in receivers:
            self.mail.setdefault((sender, receiver), deque()).append((ref, ticket))

    def receive(self, way: tuple[Process, Process]) -> None:
        ref, ticket = self.mail[way].popleft()
        if way[1] not in self.dead:
            self.handles[way[1]].added(ref)
            self.tell(way[1], "claim", ref, ticket)

    def drop(self, process: Process, ref: RefId) -> None:
        if self.handles[process].dropped(ref):
            self.tell(process, "release", ref)

    def end(self, process: Process, unheard: bool, late: bool) -> None:
        """Ends a process; with `unheard` what it has told and the owner has not heard is lost, with `late` it comes after
        word of the end."""
        if process == OWNER:
            return
        self.dead.add(process)
        if unheard:
            self.excused |= {ref for told in self.told[process] for ref in told[1:2]}
            self.told[process].clear()
        if late:  # its `create` is not taken any more
            self.excused |= {told[1] for told in self.told[process]}
        while not late and self.told[process]:
            self.hear(process)
        for way, mail in self.mail.items():
            if way[1] == process:
                mail.clear()
        # Others may have claimed what it has lent, where that was lost.
        self.excused |= {ref for ref, _ in self.calls if ref.process == process[0]}
        self.table.ended(process)
        self.table.address_ended(process[0])
        self.free()

    def check(self) -> None:
        to_come = {ref for ref, _ in self.calls}
        for process in self.alive:
            for ref in self.held(process):
                there = ref in self.values or ref in to_come or ref in self.excused
                assert there, f"{ref} is held by {process} and is gone"

    def settle(self) -> None:
        while True:
            ways = [way for way, mail in self.mail.items() if mail]
            tellers = [process for process, told in self.told.items() if told]
            if not ways and not tellers and not self.calls:
                return
            for way in ways:
                self.receive(way)
            for process in tellers:
                self.hear(process)
            if self.calls:
                self.make()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_nothing_is_freed_too_early_and_nothing_stays(data: st.DataObject) -> None:
    world = World()
    for _ in range(data.draw(st.integers(1, 40))):
        doing = data.draw(st.sampled_from(["name", "send", "send", "receive", "hear", "hear", "drop", "make", "end"]))
        process = data.draw(st.sampled_from(world.alive))
        if doing == "name":
            world.name(process)
        elif doing in ("send", "drop") and (held := world.held(process)):
            ref = data.draw(st.sampled_from(held))
            if doing == "drop":
                world.drop(process, ref)
            else:
                receivers = data.draw(st.lists(st.sampled_from(world.alive), min_size=1, max_size=3))
                world.send(process, receivers, ref)
        elif doing == "receive" and (ways := [way for way, mail in world.mail.items() if mail]):
            world.receive(data.draw(st.sampled_from(ways)))
        elif doing == "hear" and world.told[process]:
            world.hear(process)
        elif doing == "make" and world.calls:
            world.make()
        elif doing == "end" and data.draw(st.booleans()):
            world.end(process, data.draw(st.booleans()), data.draw(st.booleans()))
        world.check()
    world.settle()
    world.check()
    for process in world.alive:
        for ref in world.held(process):
            while ref in world.handles[process]:
                world.drop(process, ref)
    world.settle()
    assert not world.values, "a value is left that nobody holds"
    assert world.table.is_clean or world.excused


@pytest.mark.parametrize("number", [10_001])
def test_ends_are_remembered_within_a_bound(number: int) -> None:
    table = HolderTable()
    for index in range(number):
        table.ended((f"p{index}", 0))
    assert len(table._ended) == 10_000
