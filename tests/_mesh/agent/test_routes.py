"""Tests of which way frames go between hosts, who hears of a host's end, and who is held while others do not take theirs."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from monarch._mesh.agent.routes import InboundLink, Routes
from monarch._wire import frame as frames
from monarch._wire import message
from monarch._wire.frame import Frame
from monarch._wire.host_address import parse_dial
from monarch._wire.message import VERSION, WHO, Beat, Bye, Envelope, HostAsked, HostEnded, HostReplaced, LinkHello
from monarch._wire.transport.base import ConnectionLost

US = "tcp://us:1"
THEM = "tcp://them:2"
OTHERS = "tcp://others:3"
CLIENT = "unix:/run/c"
LIMIT = 1000


class End:
    """A process of this host, or a link: keeps what it was sent."""

    def __init__(self, remote: str) -> None:
        self.remote = remote
        self.other_agent = ""
        self.got: list[Any] = []
        self.queued = 0
        self.lost = False
        self.paused = False
        self.accepted: list[LinkHello] = []
        self.closed = ""

    def send(self, pieces: Sequence[Any], *_: Any, **__: Any) -> None:
        if self.lost:
            raise ConnectionLost("gone")
        decoder, data = frames.Decoder(), b"".join(map(bytes, pieces))
        while data:
            room = decoder.get_buffer()[: len(data)]
            room[:] = data[: len(room)]
            data = data[len(room) :]
            self.got += [message.decode(frame.head) for frame in decoder.received(len(room))]

    def accept(self, connection: Any, hello: LinkHello) -> None:
        self.accepted.append(hello)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def close(self, reason: str) -> None:
        self.closed = reason

    def connection_received(self, connection: Any, received: list[Frame]) -> None:
        self.got += [message.decode(frame.head) for frame in received]


class Clock:
    def __init__(self) -> None:
        self.timers: list[tuple[float, int, Callable[[], Any]]] = []
        self.time = 0.0

    def call_later(self, delay: float, fn: Callable[[], Any]) -> None:
        heapq.heappush(self.timers, (self.time + delay, len(self.timers), fn))

    def wait(self, seconds: float) -> None:
        until = self.time + seconds
        while self.timers and self.timers[0][0] <= until:
            self.time, _, fn = heapq.heappop(self.timers)
            fn()
        self.time = until


class Agent:
    """See `routes.RoutingHost`."""

    def __init__(self, gateway: str = "") -> None:
        self.loop: Any = Clock()
        self.routes = Routes(self, US, "agent-of-us", LIMIT)  # type: ignore[arg-type]
        self.routes.gateway = gateway
        self.dialled: dict[str, End] = {}
        self.received: list[Envelope] = []
        self.lost: list[tuple[str, str]] = []
        self.to_come: set[str] = set()

    def begin_link(self, host: str) -> End:
        parse_dial(self.routes.at(host))
        assert host not in self.dialled or self.dialled[host].lost, "dialled twice"
        self.dialled[host] = End(host)
        return self.dialled[host]

    def is_near(self, host: str) -> bool:
        return False

    def take_link(self, hello: LinkHello) -> End:
        link = End(hello.host)
        link.other_agent = hello.agent
        return link

    def receive(self, envelope: Envelope, frame: Frame) -> None:
        self.received.append(envelope)

    def awaited(self, address: str) -> bool:
        return address in self.to_come

    def host_lost(self, host: str, why: str) -> None:
        self.lost.append((host, why))

    def host_suspected(self, host: str, why: str) -> None:
        pass

    # --- what happens to it

    def process(self, name: str) -> Any:
        end: Any = End(f"{US}/{name}")
        self.routes.joined(name, end)
        return end

    def take(self, host: str, link: str = "l", agent: str = "theirs") -> Any:
        """Another agent dials us; the connection that is its link."""
        hello = LinkHello(VERSION, host, agent, link, US, 0, False)
        return self.routes.link_hello(End(""), hello)

    def give(self, to: str, source: str, origin: Any, size: int = 0) -> Envelope:
        envelope = Envelope(to, source, -1, message.encode(Beat(1)))
        self.routes.pass_on(envelope, Frame(message.encode(envelope), bytes(size), ()), origin)
        return envelope

    def lose(self, link: Any, why: str = "cut") -> None:
        link.lost = True
        self.routes.connection_lost(link, why)


def test_a_frame_goes_to_the_process_the_agent_or_another_host() -> None:
    agent = Agent()
    a, b = agent.process("m.0"), agent.process("m.1")
    link = agent.take(THEM)
    assert agent.give(f"{US}/m.1", f"{THEM}/m.9", link) in b.got
    assert agent.give(f"{US}/agent", f"{THEM}/m.9", link) in agent.received
    assert agent.give(f"{THEM}/m.9", f"{US}/m.0", a) in link.got
    assert agent.dialled == {}
    for _ in range(2):
        assert agent.give(f"{OTHERS}/m.8", f"{US}/m.0", a) in agent.dialled[OTHERS].got
    assert a.got == []


def test_a_host_goes_by_every_name_under_which_it_was_reached() -> None:
    agent = Agent()
    a = agent.process("m.0")
    hello = LinkHello(VERSION, THEM, "theirs", "l", "tcp://alias:1", 0, False)
    link: Any = agent.routes.link_hello(End(""), hello)  # type: ignore[arg-type]
    assert agent.give("tcp://alias:1/m.0", f"{THEM}/x", link) in a.got


def test_a_connection_of_our_own_is_refused_and_taught_a_name() -> None:
    agent = Agent()
    us: Any = End("")
    assert agent.routes.link_hello(us, LinkHello(VERSION, US, "agent-of-us", "l", "tcp://me:1", 0, False)) is None
    assert us.closed == "tcp://me:1 is this host itself" and us.got == [Bye("tcp://me:1 is this host itself")]
    a = agent.process("m.0")
    assert agent.give("tcp://me:1/m.0", f"{US}/m.0", a) in a.got


def test_a_host_without_an_address_is_reached_over_the_link_it_made() -> None:
    agent = Agent()
    a = agent.process("m.0")
    agent.give(f"{CLIENT}/client", f"{US}/m.0", a)
    (ended,) = a.got
    assert isinstance(ended, HostEnded) and ended.host == CLIENT and "enable_transport" in ended.why
    link = agent.take(CLIENT)
    assert agent.give(f"{CLIENT}/client", f"{US}/m.0", a) in link.got


def test_through_a_gateway() -> None:
    agent = Agent(gateway=THEM)
    a = agent.process("m.0")
    assert agent.give(f"{OTHERS}/m.8", f"{US}/m.0", a) in agent.dialled[THEM].got
    assert agent.give(f"{THEM}/m.9", f"{US}/m.0", a) in agent.dialled[THEM].got
    assert list(agent.dialled) == [THEM]
    link: Any = agent.dialled[THEM]
    # The gateway says that one behind it has ended; its own end is that of all.
    ended = HostEnded(OTHERS, "power cut")
    agent.routes.connection_received(link, [Frame(message.encode(ended), b"", ())])
    assert (a.got, agent.lost) == ([ended], [(OTHERS, "power cut")])
    agent.give(f"{OTHERS}/m.8", f"{US}/m.0", a)
    agent.lose(link)
    assert sorted(agent.lost[1:]) == [(OTHERS, "cut"), (THEM, "cut")]


def test_a_gateway_passes_on_both_ways_and_tells_of_ends() -> None:
    agent = Agent()
    link, client = agent.take(OTHERS, "others"), agent.take(CLIENT, "client", "of the client")
    there = Envelope(f"{OTHERS}/m.8", f"{CLIENT}/client", -1, b"")
    agent.routes.connection_received(client, [Frame(message.encode(there), b"", ())])
    assert there in link.got
    back = Envelope(f"{CLIENT}/client", f"{OTHERS}/m.8", -1, b"")
    agent.routes.connection_received(link, [Frame(message.encode(back), b"", ())])
    assert back in client.got
    agent.lose(link)
    assert HostEnded(OTHERS, "cut") in client.got
    agent.lose(client, "left")
    assert agent.lost == [(OTHERS, "cut"), (CLIENT, "left")]


def test_the_end_of_a_host_is_told_to_processes_here_and_it_may_be_dialled_again() -> None:
    agent = Agent()
    a = agent.process("m.0")
    agent.give(f"{OTHERS}/m.8", f"{US}/m.0", a)
    agent.lose(agent.dialled[OTHERS], "power cut")
    assert a.got == [HostEnded(OTHERS, "power cut")]
    assert agent.routes.has_ended(OTHERS)
    agent.give(f"{OTHERS}/m.8", f"{US}/m.0", a)
    assert not agent.routes.has_ended(OTHERS)


@pytest.mark.parametrize("host", ["nowhere", "", "tcp://", "tcp://a:b"])
def test_who_sends_to_what_is_no_address_is_told_that_there_is_no_way(host: str) -> None:
    agent = Agent()
    a = agent.process("m.0")
    agent.give(f"{host}/m.8", f"{US}/m.0", a)
    (ended,) = a.got
    assert ended.host == host and f"there is no way to the host {host}:" in ended.why
    assert agent.dialled == {}


def test_once_closed_nobody_is_dialled_and_all_are_told_why() -> None:
    agent = Agent()
    a = agent.process("m.0")
    link = agent.take(THEM)
    agent.routes.close("the worker program has ended")
    assert link.closed == "the worker program has ended"
    agent.give(f"{OTHERS}/m.8", f"{US}/m.0", a)
    assert a.got == [HostEnded(OTHERS, "the worker program has ended")]
    assert agent.dialled == {}
    late: Any = End("")
    hello = LinkHello(VERSION, OTHERS, "others", "late", US, 0, False)
    assert agent.routes.link_hello(late, hello) is None
    assert late.got == [Bye("the worker program has ended")]


# --- those who come late, and those who do not take their frames


def test_frames_wait_for_a_process_that_is_to_come() -> None:
    agent = Agent()
    link = agent.take(THEM)
    agent.to_come.add(f"{US}/m.0")
    sent = [agent.give(f"{US}/m.0", f"{THEM}/m.{rank}", link, 10) for rank in range(3)]
    assert agent.process("m.0").got == sent
    agent.give(f"{US}/m.1", f"{THEM}/m.0", link)  # nobody is to come there
    assert agent.process("m.1").got == []


def test_what_waits_for_a_process_that_never_comes_is_given_up() -> None:
    agent = Agent()
    link = agent.take(THEM)
    agent.to_come.add(f"{US}/m.0")
    agent.give(f"{US}/m.0", f"{THEM}/m.0", link, LIMIT + 1)
    assert link.paused and link in agent.routes.held()
    agent.routes.gone("m.0")
    agent.loop.wait(1)
    assert not link.paused
    assert agent.process("m.0").got == []


@pytest.mark.parametrize("far", [False, True])
def test_who_sends_to_one_that_does_not_take_it_is_held(far: bool) -> None:
    agent = Agent()
    a, link = agent.process("m.0"), agent.take(THEM)
    origin, target, to = (a, link, f"{THEM}/m.9") if far else (link, a, f"{US}/m.0")
    target.queued = LIMIT
    agent.give(to, f"{US}/m.1", origin)
    assert not origin.paused
    target.queued = LIMIT + 1
    agent.give(to, f"{US}/m.1", origin)
    agent.give(to, f"{US}/m.1", origin)
    assert origin.paused and not target.paused
    target.queued = LIMIT // 2 + 1
    agent.loop.wait(1)
    assert origin.paused
    target.queued = LIMIT // 2
    agent.loop.wait(1)
    assert not origin.paused and origin not in agent.routes.held()
    assert agent.loop.timers == []


def test_who_waits_for_one_that_ends_goes_on() -> None:
    agent = Agent()
    a, link = agent.process("m.0"), agent.take(THEM)
    link.queued = LIMIT + 1
    agent.give(f"{THEM}/m.9", f"{US}/m.0", a)
    assert a.paused
    agent.lose(link)
    agent.loop.wait(1)
    assert not a.paused


# --- the first frame of a connection


def test_what_is_no_hello_is_refused() -> None:
    agent = Agent()
    stranger: Any = End("")
    InboundLink(agent.routes).connection_received(stranger, [Frame(message.encode(Beat(0)), b"", ())])
    assert "LinkHello" in stranger.closed and agent.routes.links() == {}


def test_the_same_link_again_keeps_its_state() -> None:
    agent = Agent()
    first = agent.take(THEM)
    assert agent.take(THEM) is first and len(first.accepted) == 2


def test_a_host_that_begins_another_link_has_given_up_the_one_before() -> None:
    agent = Agent()
    first, other = agent.take(THEM, "one"), agent.take(OTHERS, "other")
    second = agent.take(THEM, "two")
    assert first.closed == f"{THEM} gave the link up and began another"
    agent.lose(first, first.closed)
    assert agent.take(THEM, "two") is second
    # What it wants to go on with it has not begun: one that is unknown here is not told to replace another.
    agent.routes.link_hello(End(""), LinkHello(VERSION, THEM, "theirs", "zero", US, 0, True))
    assert (second.closed, other.closed) == ("", "")


def test_one_host_may_have_a_link_to_each_of_our_names() -> None:
    agent = Agent()
    first = agent.take(THEM, "one")
    agent.routes.link_hello(End(""), LinkHello(VERSION, THEM, "theirs", "two", "tcp://us.example:1", 0, False))
    assert first.closed == ""


def test_who_asks_which_agent_is_here_is_told_and_gets_no_link() -> None:
    agent = Agent()
    asking = End("")
    hello = LinkHello(VERSION, THEM, "theirs", "l", US, 0, False, purpose=WHO)
    InboundLink(agent.routes).connection_received(asking, [Frame(message.encode(hello), b"", ())])
    assert [type(msg) for msg in asking.got] == [LinkHello] and asking.got[0].agent == "agent-of-us"
    assert asking.closed and not agent.routes.links()


# --- hosts that are replaced


OWNER = f"{CLIENT}/client"


def replaced(host: str, at: str, agent: str, generation: int) -> HostReplaced:
    return HostReplaced(host, at, agent, generation)


def arrive(agent: Agent, link: Any, to: str, source: str) -> Envelope:
    envelope = Envelope(to, source, -1, message.encode(Beat(1)))
    agent.routes.connection_received(link, [Frame(message.encode(envelope), b"", ())])
    return envelope


def test_a_host_that_is_replaced_is_dialled_elsewhere_under_its_name() -> None:
    agent = Agent()
    a = agent.process("m.0")
    agent.give(f"{THEM}/m.1", f"{US}/m.0", a)
    before = agent.dialled.pop(THEM)
    assert agent.routes.at(THEM) == THEM
    assert agent.routes.replaced(replaced(THEM, OTHERS, "new", 1), OWNER)
    assert before.closed == "another host has taken its place"
    assert a.got == [HostEnded(THEM, "another host has taken its place", 0)]
    assert agent.lost == [(THEM, "another host has taken its place")]
    assert (agent.routes.at(THEM), agent.routes.generation(THEM)) == (OTHERS, 1)
    assert not agent.routes.has_ended(THEM)
    sent = agent.give(f"{THEM}/m.1", f"{US}/m.0", a)
    assert sent in agent.dialled[THEM].got
    agent.lose(agent.dialled[THEM])
    assert a.got[1:] == [HostEnded(THEM, "cut", 1)]


def test_who_owns_it_dials_first_and_keeps_that_link() -> None:
    agent = Agent()
    a = agent.process("m.0")
    assert not agent.routes.replaced(replaced(THEM, OTHERS, "", 0), OWNER)  # only where to dial
    agent.give(f"{THEM}/agent", f"{US}/m.0", a)
    link = agent.dialled[THEM]
    assert agent.routes.replaced(replaced(THEM, OTHERS, "new", 1), OWNER)
    assert not agent.routes.replaced(replaced(THEM, OTHERS, "new", 1), OWNER)  # told again
    assert link.closed == "" and a.got == [] and agent.lost == []
    assert agent.give(f"{THEM}/m.1", f"{US}/m.0", a) in link.got


def test_late_word_of_the_lost_one_does_not_end_its_successor() -> None:
    """Others notice a death up to a second later, and their word looks as if it meant whoever is dialled by now."""
    late = [Frame(message.encode(HostEnded(THEM, "late", 0)), b"", ())]
    agent = Agent()
    a = agent.process("m.0")
    other = agent.take(OTHERS, "other")
    agent.routes.replaced(replaced(THEM, "tcp://spare:1", "", 0), OWNER)
    agent.routes.connection_received(other, late)  # before anything is sent there
    agent.give(f"{THEM}/agent", f"{US}/m.0", a)
    agent.routes.connection_received(other, late)
    assert a.got == [] and agent.lost == [] and not agent.dialled[THEM].closed


def asked(end: Any) -> list[Any]:
    return [msg for msg in end.got if isinstance(msg, HostAsked)]


def test_clients_are_asked_of_a_host_that_is_not_reached_at_once() -> None:
    agent = Agent()
    a, client = agent.process("m.0"), agent.take(CLIENT)
    agent.routes.client_came(CLIENT)
    agent.routes.client_came("unix:/run/of/no/link")
    agent.give(f"{THEM}/m.9", f"{US}/m.0", a)
    agent.loop.wait(0.29)
    assert asked(client) == []
    agent.loop.wait(1.0)
    assert asked(client) == [HostAsked(THEM)] * 3  # after 0.3, 0.6, 1.2 s
    ended = [Frame(message.encode(HostEnded(THEM, "power cut")), b"", ())]
    agent.routes.connection_received(client, ended)
    assert a.got == [HostEnded(THEM, "power cut")] and agent.lost == [(THEM, "power cut")]
    assert agent.dialled[THEM].closed == "power cut"
    agent.loop.wait(0.9)
    agent.dialled[THEM].lost = True
    agent.give(f"{THEM}/m.9", f"{US}/m.0", a)  # once more: the questions of the first link have ended with it
    agent.loop.wait(1.25)
    assert len(asked(client)) == 3 + 3


def test_nobody_is_asked_of_a_host_that_was_reached_and_word_that_comes_late_changes_nothing() -> None:
    agent = Agent()
    a, client = agent.process("m.0"), agent.take(CLIENT)
    agent.routes.client_came(CLIENT)
    agent.give(f"{THEM}/m.9", f"{US}/m.0", a)
    agent.loop.wait(0.5)
    agent.dialled[THEM].other_agent = "theirs"
    agent.loop.wait(100)
    assert len(asked(client)) == 1
    late = [Frame(message.encode(HostEnded(THEM, "late")), b"", ())]
    agent.routes.connection_received(client, late)
    assert agent.lost == [] and not agent.dialled[THEM].closed


def test_only_what_was_asked_ends_a_host_that_was_not_reached() -> None:
    agent = Agent()
    a, client = agent.process("m.0"), agent.take(CLIENT)
    agent.give(f"{THEM}/m.9", f"{US}/m.0", a)  # nobody has attached
    agent.loop.wait(100)
    agent.routes.connection_received(client, [Frame(message.encode(HostEnded(THEM, "of old")), b"", ())])
    assert asked(client) == [] and agent.lost == []


def test_a_client_that_has_gone_is_not_asked() -> None:
    agent = Agent()
    a, client = agent.process("m.0"), agent.take(CLIENT)
    agent.routes.client_came(CLIENT)
    agent.lose(client)
    other = agent.take(CLIENT, "l2")
    agent.give(f"{THEM}/m.9", f"{US}/m.0", a)
    agent.loop.wait(100)
    assert asked(other) == []


def test_a_host_that_only_one_of_two_clients_cannot_reach_has_not_ended() -> None:
    agent = Agent()
    a, cut_off, sees_it = agent.process("m.0"), agent.take(CLIENT), agent.take("unix:/run/d", "l2")
    other = agent.take(OTHERS, "l3")
    agent.routes.client_came(CLIENT)
    agent.routes.client_came("unix:/run/d")
    agent.give(f"{THEM}/m.9", f"{US}/m.0", a)
    agent.loop.wait(1)
    assert len(asked(cut_off)) == len(asked(sees_it)) == 2
    ended = [Frame(message.encode(HostEnded(THEM, "a cable")), b"", ())]
    for link in (cut_off, cut_off, other):  # `other` is no client's, and was not asked
        agent.routes.connection_received(link, ended)
    assert agent.lost == [] and not agent.dialled[THEM].closed
    agent.routes.connection_received(sees_it, ended)
    assert agent.lost == [(THEM, "a cable")]


def test_nobody_but_clients_is_believed_when_all_clients_have_gone() -> None:
    agent = Agent()
    a, client, other = agent.process("m.0"), agent.take(CLIENT), agent.take(OTHERS, "l3")
    agent.routes.client_came(CLIENT)
    agent.give(f"{THEM}/m.9", f"{US}/m.0", a)
    agent.loop.wait(1)
    agent.lose(client)
    agent.routes.connection_received(other, [Frame(message.encode(HostEnded(THEM, "of old")), b"", ())])
    assert agent.lost == [(CLIENT, "cut")]


def test_clients_that_come_and_go_leave_nothing() -> None:
    agent = Agent()
    for number in range(100):
        client = agent.take(f"unix:/run/{number}", f"l{number}")
        agent.routes.client_came(f"unix:/run/{number}")
        agent.lose(client)
    assert agent.routes._clients == set()


def test_who_asks_and_does_not_take_the_answers_gets_no_more() -> None:
    agent = Agent()
    agent.lose(agent.take(THEM), "power cut")
    worker = agent.take(OTHERS, "l2")
    question = [Frame(message.encode(HostAsked(THEM)), b"", ())]
    worker.queued = LIMIT + 1
    agent.routes.connection_received(worker, question * 100)
    assert worker.got == []
    worker.queued = 0
    agent.routes.connection_received(worker, question)
    assert worker.got == [HostEnded(THEM, "power cut")]


def test_who_knows_of_an_end_answers_who_asks() -> None:
    agent = Agent()
    a, link = agent.process("m.0"), agent.take(THEM)
    worker = agent.take(OTHERS, "l2")
    question = [Frame(message.encode(HostAsked(THEM)), b"", ())]
    agent.routes.connection_received(worker, question)
    assert worker.got == []  # it lives, as far as known here
    agent.lose(link, "power cut")
    agent.routes.connection_received(worker, question)
    assert worker.got == [HostEnded(THEM, "power cut")]
    agent.give(f"{THEM}/m.9", f"{US}/m.0", a)  # somebody here counts on another in its place
    agent.routes.connection_received(worker, question)
    assert len(worker.got) == 1


def test_the_gateway_tells_of_the_end_of_a_successor() -> None:
    agent = Agent(gateway=OTHERS)
    a = agent.process("m.0")
    agent.routes.replaced(replaced(THEM, "tcp://spare:1", "", 0), OWNER)
    agent.give(f"{THEM}/agent", f"{US}/m.0", a)  # through the gateway
    ended = HostEnded(THEM, "nobody listens", 0)
    agent.routes.connection_received(agent.dialled[OTHERS], [Frame(message.encode(ended), b"", ())])
    assert a.got == [ended]


def test_old_news_change_nothing() -> None:
    agent = Agent()
    agent.routes.replaced(replaced(THEM, OTHERS, "second", 2), OWNER)
    assert not agent.routes.replaced(replaced(THEM, "tcp://first:1", "first", 1), OWNER)
    assert agent.routes.at(THEM) == OTHERS
    agent.process("m.0")
    link = agent.take("tcp://gateway:1")
    agent.routes.connection_received(link, [Frame(message.encode(HostEnded(THEM, "late", 1)), b"", ())])
    assert agent.lost == []


def test_nobody_listens_to_one_that_was_replaced_and_comes_back() -> None:
    agent = Agent()
    a = agent.process("m.0")
    zombie = agent.take(THEM, agent="old")
    assert arrive(agent, zombie, f"{US}/m.0", f"{THEM}/m.1") in a.got
    agent.routes.replaced(replaced(THEM, OTHERS, "new", 1), OWNER)
    del a.got[:]
    again = agent.take(THEM, link="again", agent="old")
    for link in (zombie, again):
        arrive(agent, link, f"{US}/m.0", f"{THEM}/m.1")
        arrive(agent, link, f"{US}/agent", f"{THEM}/agent")
    assert (a.got, agent.received) == ([], [])
    rightful = agent.take(OTHERS, link="n", agent="new")
    assert arrive(agent, rightful, f"{US}/m.0", f"{THEM}/m.1") in a.got
    assert agent.give(f"{THEM}/m.1", f"{US}/m.0", a) in rightful.got  # and it is answered the way it came
    assert agent.dialled == {}


def test_the_new_one_goes_by_the_name_and_a_name_of_ours_may_be_anothers() -> None:
    agent = Agent()
    a = agent.process("m.0")
    us = agent.routes
    hello = LinkHello(VERSION, CLIENT, "clients", "l", THEM, 0, False)
    link: Any = us.link_hello(End(""), hello)  # type: ignore[arg-type]
    us.replaced(replaced(THEM, US, "agent-of-us", 1), OWNER)
    assert arrive(agent, link, f"{THEM}/m.0", OWNER) in a.got
    assert us.name == US
    us.replaced(replaced(US, OTHERS, "other", 1), OWNER)  # our own address is the name of a host that lives elsewhere
    assert us.name == THEM and us.names == {THEM}
    assert agent.give(f"{US}/m.9", f"{THEM}/m.0", a) in agent.dialled[US].got
    late = LinkHello(VERSION, CLIENT, "clients", "l2", US, 0, False)  # of somebody who has not heard
    us.link_hello(End(""), late)  # type: ignore[arg-type]
    assert us.names == {THEM}
    us.replaced(replaced(US, US, "agent-of-us", 2), OWNER)
    assert us.names == {US, THEM} and us.name == US


def test_names_end_with_whoever_gave_them() -> None:
    agent = Agent()
    us = agent.routes
    us.replaced(replaced(THEM, US, "agent-of-us", 1), OWNER)
    us.replaced(replaced(US, OTHERS, "other", 1), OWNER)
    us.replaced(replaced("tcp://third:1", OTHERS, "other", 1), "tcp://else:1/m.0")
    us.forget_moves(lambda owner: owner == OWNER)
    assert us.names == {US} and us.name == US
    assert us.at(US) == US and us.at(THEM) == THEM and us.at("tcp://third:1") == OTHERS
