"""The links of two hosts that have ports of their own, over real sockets; one of the hosts is replaced by another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch._mesh.agent import host_links
from monarch._mesh.agent.host_links import HostLinks, HostListener
from monarch._mesh.agent.routes import Routes
from monarch._mesh.start.agent_process import AgentOptions, Credentials
from monarch._runtime.loop import Loop
from monarch._wire.link_connection import LinkConnection
from monarch._wire.message import LinkHello
from tests.support.loops import RunningLoop

SECRET = Credentials(b"a long and random text")


class Agent:
    """An agent, as much of one as links need."""

    def __init__(self, loop: Loop, address: str, unique: str) -> None:
        self.loop = loop
        options = AgentOptions("", address, worker=True, credentials=SECRET)
        self.listening = HostListener(options, loop)
        self.routes = Routes(self, self.listening.prefix, unique, 1 << 20)
        self.links = HostLinks(options, loop, self.routes, self.listening)
        self.taken: list[LinkConnection] = []
        self.ended: list[str] = []

    def begin_link(self, host: str) -> LinkConnection:
        return self.links.dial(host)

    def take_link(self, hello: LinkHello) -> LinkConnection:
        self.taken.append(link := self.links.take(hello))
        return link

    def receive(self, envelope: Any, frame: Any) -> None: ...

    def awaited(self, address: str) -> bool:
        return False

    def is_near(self, host: str) -> bool:
        return False

    def host_lost(self, host: str, why: str) -> None:
        self.ended.append(why)

    def host_suspected(self, host: str, why: str) -> None:
        """Does as the host agent does for a link that the other side has dialled."""
        link = self.routes.links().get(host)
        if why and isinstance(link, LinkConnection) and not link.dials:
            self.links.look_after(host, link)

    def vanish(self) -> None:
        """Vanishes as a process that is killed: its sockets are closed, and nothing is said."""
        self.listening.close()
        for link in self.routes.links().values():
            assert isinstance(link, LinkConnection)
            link._dial = lambda done: None
            link._link.connection.close("killed")


@pytest.fixture
def machine() -> Iterator[RunningLoop]:
    machine = RunningLoop()
    yield machine
    machine.end()


def test_a_dialler_that_is_restarted_at_once_is_noticed_at_once(machine: RunningLoop, tmp_path: Path) -> None:
    """Its port answers all the time, so that no refused connection tells; but another agent does."""
    where = f"ipc://{tmp_path}/dialler"
    dialler, worker = machine.call(
        lambda: (Agent(machine.loop, where, "first"), Agent(machine.loop, f"ipc://{tmp_path}/worker", "worker"))
    )
    machine.call(lambda: dialler.routes.way_to(worker.listening.prefix))
    machine.until(lambda: bool(worker.taken) and worker.taken[0].up)

    def restart() -> Agent:
        dialler.vanish()
        return Agent(machine.loop, where, "second")

    second = machine.call(restart)
    machine.until(lambda: bool(worker.ended))
    assert worker.ended == [f"the process at {where} is another one now: the host was restarted"]
    assert worker.taken[0].lost and second.taken == []
    for agent in (worker, second):
        machine.call(agent.links.close)


def test_a_dialler_that_lives_is_waited_for(
    machine: RunningLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_links, "_KNOCK_AGAIN", 0.01)
    asked: list[str] = []
    dialler, worker = machine.call(
        lambda: (
            Agent(machine.loop, f"ipc://{tmp_path}/dialler", "first"),
            Agent(machine.loop, f"ipc://{tmp_path}/worker", "worker"),
        )
    )
    say_who = dialler.routes.say_who
    dialler.routes.say_who = lambda connection, hello: (asked.append(hello.agent), say_who(connection, hello))
    link = machine.call(lambda: dialler.routes.way_to(worker.listening.prefix))
    machine.until(lambda: bool(worker.taken) and worker.taken[0].up)

    held: list[Any] = []  # attempts to dial, while it cannot
    dial, link._dial = link._dial, held.append
    machine.call(lambda: link._link.connection.close("cut"))
    machine.until(lambda: len(asked) > 3 and bool(held))
    assert worker.ended == [] and not worker.taken[0].lost and set(asked) == {"worker"}
    machine.call(lambda: dial(held.pop()))
    machine.until(lambda: worker.taken[0].up)
    for agent in (worker, dialler):
        machine.call(lambda agent=agent: agent.routes.close("over"))
        machine.call(agent.links.close)
