"""Processes of different hosts that talk much connect directly: real processes, order, broken connections, ends."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch._mesh.agent.host_links import HostLinks, HostListener
from monarch._mesh.agent.routes import Routes
from monarch._mesh.start.agent_process import AgentOptions, Credentials
from monarch._runtime.context import home
from monarch._runtime.loop import Loop, start_thread
from monarch._runtime.proc import Proc
from monarch._wire import frame as frames
from monarch._wire import host_address, message
from monarch._wire.address import agent_at
from monarch._wire.frame import Frame
from monarch._wire.message import VERSION, AskDirect, Bye, LinkHello, MayDial
from monarch._wire.transport import tcp
from monarch._wire.transport.stream import StreamConnection
from monarch.actor import (
    Channel,
    HostMesh,
    Port,
    RestartPolicy,
    SupervisionError,
    attach_to_workers,
    endpoint,
)
from monarch.config import configure
from tests.support.hosts import TIMEOUT, Hosts, Worker
from tests.support.process_actors import Pid
from tests.support.tiers import first_of, full

pytestmark = pytest.mark.procs
SOON = 10  # messages after which processes connect directly in these tests
BIG = 300_000  # bytes, more than a socket takes at once


@pytest.fixture(autouse=True)
def _soon() -> None:
    configure(direct_after=SOON)


@pytest.fixture
def one(hosts: Hosts) -> Iterator[HostMesh]:
    mesh = hosts.attach(hosts.start_tcp())
    yield mesh
    mesh.shutdown().get(TIMEOUT)


@pytest.fixture
def two(hosts: Hosts) -> Iterator[HostMesh]:
    mesh = hosts.attach(hosts.start_tcp(), hosts.start_tcp())
    yield mesh
    mesh.shutdown().get(TIMEOUT)


def in_loop(proc: Proc, fn: Callable[[], Any]) -> Any:
    done = threading.Event()
    got: list[Any] = []
    proc.loop.call_soon(lambda: (got.append(fn()), done.set()))
    assert done.wait(TIMEOUT)
    return got[0]


def links(proc: Proc) -> dict[str, tuple[bool, bool]]:
    """The processes this one has a direct link with: whether it sends over it, whether it takes what comes."""
    directs = proc._directs
    return {} if directs is None else {pair.address: (pair.sending, pair.taking) for pair in directs.pairs}


def cut(proc: Proc, address: str) -> None:
    """Breaks the connection of the link, as a network does: both ends hear of it."""
    assert proc._directs is not None
    for pair in proc._directs.pairs:
        if pair.address == address and pair.link._link.connection is not None:
            pair.link._link.connection._sock.shutdown(socket.SHUT_RDWR)


class Far(Pid):
    """Lives in a process of another host."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @endpoint
    def address(self) -> str:
        return _home().address

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def note(self, value: Any) -> None:
        self.seen.append(value)

    @endpoint
    def noted(self) -> list[Any]:
        return self.seen

    @endpoint
    def stream(self, port: Port[Any], first: int, count: int) -> None:
        for number in range(first, first + count):
            port.send((number, b"x" * BIG) if number % 100 == 0 else (number, b""))

    @endpoint
    def links(self) -> dict[str, tuple[bool, bool]]:
        return in_loop(_home(), lambda: links(_home()))

    @endpoint
    def cut(self, address: str) -> None:
        in_loop(_home(), lambda: cut(_home(), address))

    @endpoint
    def talk(self, other: Any, first: int, count: int) -> list[int]:
        """Broadcasts and calls to another, by turns; what the calls have answered."""
        futures = []
        for number in range(first, first + count):
            other.note.broadcast(number)
            futures.append(other.echo.call_one(number))
        return [future.get(TIMEOUT) for future in futures]

    @endpoint(explicit_response_port=True)
    def answer_and_exit(self, response: Port[int], port: Port[int], count: int) -> None:
        for number in range(count):
            port.send(number)
        response.send(count)
        os._exit(0)

    @endpoint
    def forever(self, port: Port[int]) -> None:
        port.send(os.getpid())
        threading.Event().wait()


def _home() -> Proc:
    proc = home()
    assert proc is not None
    return proc


def settled(far: Any, talk: Callable[[], Any]) -> tuple[str, str]:
    """Talks until both ends send over a direct link; returns the client's address and the other's."""
    here, there = _home().address, far.address.call_one().get(TIMEOUT)
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        talk()
        states = (links(_home()).get(there), far.links.call_one().get(TIMEOUT).get(here))
        if states == ((True, True), (True, True)):
            return here, there
    pytest.fail(f"no direct link came about: {states}")


def connect(far: Any) -> tuple[str, str]:
    return settled(far, lambda: far.echo.call_one(0).get(TIMEOUT))


def test_two_processes_that_talk_much_connect_directly(one: HostMesh) -> None:
    far = one.spawn_procs().spawn("far", Far)
    connect(far)
    assert [far.echo.call_one(number).get(TIMEOUT) for number in range(100)] == list(range(100))
    value = os.urandom(3_000_000)
    assert far.echo.call_one(value).get(TIMEOUT) == value


@full
def test_never(hosts: Hosts) -> None:
    configure(direct_after=0)
    one = hosts.attach(hosts.start_tcp())
    far = one.spawn_procs().spawn("far", Far)
    there = far.address.call_one().get(TIMEOUT)
    assert [far.echo.call_one(number).get(TIMEOUT) for number in range(300)] == list(range(300))
    assert there not in links(_home()) and far.links.call_one().get(TIMEOUT) == {}
    one.shutdown().get(TIMEOUT)


@full
def test_port_messages_keep_their_order(one: HostMesh) -> None:
    """Nothing numbers them: whoever changes over must not let one overtake another."""
    far = one.spawn_procs().spawn("far", Far)
    port, receiver = Channel[Any].open()
    count = 3000
    done = far.stream.call_one(port, 0, count)
    answers = [far.echo.call_one(number) for number in range(500)]
    assert [receiver.recv().get(TIMEOUT)[0] for _ in range(count)] == list(range(count))
    done.get(TIMEOUT)
    assert [answer.get(TIMEOUT) for answer in answers] == list(range(500))
    assert _home().address in far.links.call_one().get(TIMEOUT)  # it did change over meanwhile


@full
def test_processes_of_two_workers_keep_the_order_of_broadcasts_and_calls(two: HostMesh) -> None:
    procs = two.spawn_procs()
    talkers, fars = procs.spawn("talker", Far), procs.spawn("far", Far)
    left, right = fars.slice(hosts=0), fars.slice(hosts=1)
    count = 1000
    there = talkers.slice(hosts=0).talk.call_one(right, 0, count)
    back = talkers.slice(hosts=1).talk.call_one(left, 0, count)
    assert there.get(TIMEOUT) == list(range(count)) and back.get(TIMEOUT) == list(range(count))
    for far, other in ((left, right), (right, left)):
        assert far.noted.call_one().get(TIMEOUT) == list(range(count))
        assert other.address.call_one().get(TIMEOUT) in far.links.call_one().get(TIMEOUT)


@full
def test_a_connection_that_breaks_is_made_again_and_nothing_is_lost(one: HostMesh) -> None:
    far = one.spawn_procs().spawn("far", Far)
    here, there = connect(far)
    port, receiver = Channel[Any].open()
    answers, sent, part = [], 0, 300
    for turn in range(6):
        answers.append(far.stream.call_one(port, sent, part))
        sent += part
        answers += [far.echo.call_one(number) for number in range(50)]
        if turn % 2:
            in_loop(_home(), lambda: cut(_home(), there))
        else:
            far.cut.call_one(here).get(TIMEOUT)
        for number in range(sent - part, sent):
            assert receiver.recv().get(TIMEOUT)[0] == number
    for answer in answers:
        answer.get(TIMEOUT)
    assert links(_home())[there] == (True, True)  # the same link, which was there all the time


@full
def test_what_a_process_says_before_it_ends_arrives(one: HostMesh, faults: Any) -> None:
    """Its end is told by the agents, and its last words come another way."""
    count = 50
    for _ in range(12):
        far = one.spawn_procs().spawn("far", Far)
        connect(far)
        port, receiver = Channel[int].open()
        assert far.answer_and_exit.call_one(port, count).get(TIMEOUT) == count
        assert [receiver.recv().get(TIMEOUT) for _ in range(count)] == list(range(count))
        with pytest.raises(SupervisionError):
            far.echo.call_one(1).get(TIMEOUT)


@full
def test_a_process_that_is_killed(one: HostMesh, faults: Any) -> None:
    far = one.spawn_procs().spawn("far", Far)
    before = sorted(in_loop(_home(), _home().loop.descriptors))
    _here, there = connect(far)
    port, started = Channel[int].open()
    waiting = far.forever.call_one(port)
    os.kill(started.recv().get(TIMEOUT), signal.SIGKILL)
    with pytest.raises(SupervisionError, match=r"sig=9"):
        waiting.get(TIMEOUT)
    assert there in faults.next(handled=True).report()
    assert there not in links(_home())
    assert sorted(in_loop(_home(), _home().loop.descriptors)) == before


@full
def test_one_that_takes_its_place_is_connected_to_again(one: HostMesh, faults: Any) -> None:
    procs = one.spawn_procs()
    with RestartPolicy(max_restarts=5):
        far = procs.spawn("far", Far)
    for _ in range(3):
        connect(far)
        pid = far.pid.call_one().get(TIMEOUT)
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            try:
                if far.pid.call_one().get(TIMEOUT) != pid:
                    break
            except SupervisionError:
                continue
    connect(far)
    assert far.noted.call_one().get(TIMEOUT) == []


@full
def test_a_worker_that_is_killed_with_links_to_it(hosts: Hosts, faults: Any) -> None:
    two = hosts.attach(hosts.start_tcp(), hosts.start_tcp())
    fars = two.spawn_procs().spawn("far", Far)
    connect(fars.slice(hosts=0))
    connect(fars.slice(hosts=1))
    port, started = Channel[int].open()
    waiting = fars.slice(hosts=0).forever.call_one(port)
    started.recv().get(TIMEOUT)
    os.kill(hosts.workers[0].agent, signal.SIGKILL)
    with pytest.raises(SupervisionError):
        waiting.get(TIMEOUT)
    assert fars.slice(hosts=1).echo.call_one(7).get(TIMEOUT) == 7
    assert hosts.workers[0].address not in [address.rpartition("/")[0] for address in links(_home())]
    faults.next(handled=True)
    two.shutdown().get(TIMEOUT)


@full
def test_stopping_closes_links(one: HostMesh) -> None:
    procs = one.spawn_procs({"gpus": 2})
    fars = procs.spawn("far", Far)
    theirs = [connect(fars.slice(gpus=rank))[1] for rank in range(2)]
    assert set(theirs) <= set(links(_home()))
    procs.stop().get(TIMEOUT)
    with pytest.raises(SupervisionError, match="stopped"):
        fars.echo.call(1).get(TIMEOUT)
    deadline = time.monotonic() + TIMEOUT
    while set(theirs) & set(in_loop(_home(), lambda: links(_home()))):
        assert time.monotonic() < deadline


@full
def test_a_job_with_a_secret(hosts: Hosts) -> None:
    worker = hosts.start_tcp(env={"MONARCH_SECRET": "the-secret-of-this-job"})
    mesh = attach_to_workers(workers=[worker.address], secret="the-secret-of-this-job")
    far = mesh.spawn_procs().spawn("far", Far)
    connect(far)
    assert "the-secret" not in repr(_home()._directs)
    mesh.shutdown().get(TIMEOUT)
    assert "the-secret" not in worker.output()


# --- whoever may speak, but not to that process


class Stranger:
    """Dials a host and says one thing; hears what is said back."""

    def __init__(self, worker: Worker) -> None:
        self.loop = Loop("stranger")
        self.loop.start()
        self.worker = worker
        self.heard: list[Any] = []
        self._changed = threading.Condition()

    def connection_received(self, connection: Any, received: list[Frame]) -> None:
        with self._changed:
            self.heard += [message.decode(frame.head) for frame in received]

    def connection_lost(self, connection: Any, reason: str) -> None:
        with self._changed:
            self.heard.append(None)
            self._changed.notify_all()

    def say(self, *messages: Any) -> list[Any]:
        """The messages of the other side until it has closed the connection."""
        pieces = b"".join(frames.encode_small(message.encode(msg), b"") for msg in messages)

        def connected(outcome: Any) -> None:
            connection = StreamConnection(outcome, self.loop, self, limit=1 << 20)
            connection.start()
            connection.send([pieces])

        to = host_address.parse_dial(self.worker.address)
        self.loop.call_soon(lambda: tcp.dial(to, self.loop, connected, secret=None, start_thread=start_thread))
        with self._changed:
            assert self._changed.wait_for(lambda: None in self.heard, TIMEOUT)
        return self.heard[:-1]

    def close(self) -> None:
        self.loop.stop()
        assert self.loop.join(TIMEOUT)


def _hello(worker: Worker, name: str, **changes: Any) -> LinkHello:
    to = f"{worker.address}/{name}"
    hello = LinkHello(VERSION, "tcp://192.0.2.1:1/x.0", "stranger", "link-1", to, 0, False, to, 0, 0)
    for field, value in changes.items():
        setattr(hello, field, value)
    return hello


@full
@pytest.mark.parametrize(
    ("changes", "reason"),
    first_of(
        [
            ({"to": "tcp://127.0.0.1:1/nobody.0"}, "could not be handed to the process nobody.0"),
            ({"to": "tcp://127.0.0.1:1/../x"}, "could not be handed to the process x"),
            ({"target_incarnation": 3}, "a new one has taken its place"),
            ({"resume": True}, "not known here"),
        ]
    ),
)
def test_links_that_fit_nobody_are_refused(hosts: Hosts, one: HostMesh, changes: dict[str, Any], reason: str) -> None:
    far = one.spawn_procs().spawn("far", Far)
    name = far.address.call_one().get(TIMEOUT).rpartition("/")[2]
    stranger = Stranger(hosts.workers[0])
    try:
        (bye,) = stranger.say(_hello(hosts.workers[0], name, **changes))
    finally:
        stranger.close()
    assert isinstance(bye, Bye) and reason in bye.reason
    assert far.echo.call_one(1).get(TIMEOUT) == 1


@full
def test_who_says_more_before_the_answer_is_refused(hosts: Hosts, one: HostMesh) -> None:
    """Refuses it: what an agent has read already it cannot hand over."""
    far = one.spawn_procs().spawn("far", Far)
    name = far.address.call_one().get(TIMEOUT).rpartition("/")[2]
    stranger = Stranger(hosts.workers[0])
    try:
        (bye,) = stranger.say(_hello(hosts.workers[0], name), Bye("and more"))
    finally:
        stranger.close()
    assert isinstance(bye, Bye) and "more before it was answered" in bye.reason


@pytest.mark.parametrize(
    ("host", "gateway", "ca", "why"),
    [
        ("tcp://10.0.0.2:1", "", b"", ""),
        ("tcp://10.0.0.2:1", "tcp://10.0.0.2:1", b"", ""),
        ("tcp://10.0.0.2:1", "tcp://10.0.0.9:1", b"", "through a gateway"),
        ("unix:/tmp/somewhere", "", b"", "no address"),
        ("tcp://10.0.0.2:1", "", b"-----BEGIN", "TLS"),
    ],
)
def test_whom_processes_may_dial(host: str, gateway: str, ca: bytes, why: str) -> None:
    loop = Loop("test")
    options = AgentOptions("/tmp", credentials=Credentials(secret=b"hush", ca=ca))
    routes = Routes(None, "tcp://10.0.0.1:1", "agent", 1)  # type: ignore[arg-type]
    routes.gateway = gateway
    told = HostLinks(options, loop, routes, HostListener(options, loop)).may_dial(f"{host}/x.0")
    assert told.address == f"{host}/x.0"
    assert (why in told.why) if why else not told.why
    assert told.secret == (b"" if why else b"hush")
    assert told.encrypted == (why == "TLS")
    loop.stop()
    loop.run()  # closes its descriptors


@full
def test_agents_tell_the_secret_to_nobody_else(hosts: Hosts, one: HostMesh) -> None:
    far = one.spawn_procs().spawn("far", Far)
    far.echo.call_one(1).get(TIMEOUT)
    told: list[Any] = []
    proc = _home()
    proc.receivers[MayDial], before = (
        lambda connection, may, frame: told.append(connection.remote),
        proc.receivers[MayDial],
    )
    try:
        proc.post(agent_at(hosts.workers[0].address), AskDirect("tcp://127.0.0.1:1/x.0"))
        one.spawn_procs().spawn("later", Far).echo.call_one(1).get(TIMEOUT)  # the agent has handled what came before
    finally:
        proc.receivers[MayDial] = before
    assert told == []
