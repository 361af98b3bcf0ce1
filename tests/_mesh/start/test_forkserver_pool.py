"""Tests of which fork server serves a spec. Sockets without processes at their ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from monarch._mesh.start.forkserver_pool import ForkServers
from monarch._mesh.start.forkserver_protocol import read_file, receive_packet
from monarch._wire import os_text
from monarch._wire.message import LaunchSpec


class Loop:
    """Hears of no event."""

    def add(self, fd: int, on_event: Any) -> None: ...
    def remove(self, fd: int) -> None: ...
    def want_write(self, fd: int, on: bool) -> None: ...


class Pool:
    def __init__(self) -> None:
        ours, self.first = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        begun, self.begun = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self.first, self.begun):
            end.setblocking(False)
        self.servers = ForkServers(ours, Loop(), None)  # type: ignore[arg-type]
        self.servers.add(begun, ["torch"])

    def asked_for_another(self) -> list[Any]:
        """Returns what the first fork server was asked to be forked for."""
        try:
            received = receive_packet(self.first)
        except BlockingIOError:
            return []
        assert received is not None
        packet, fds = received
        for fd in fds:
            os.close(fd)
        return [packet[1]]


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.servers.close()
    made.first.close()
    made.begun.close()


def spec(preload: list[str], **env: str) -> LaunchSpec:
    return LaunchSpec("", {**os.environ, **env}, "/", [], "", b"", False, False, preload, False)


def test_one_that_began_with_the_agent_serves_what_it_has_imported(pool: Pool) -> None:
    server = pool.servers.serving(spec(["torch"]))
    assert pool.servers.serving(spec(["torch"], NOTHING_OF_TORCH="1")) is server
    assert pool.asked_for_another() == []


@pytest.mark.parametrize(
    "other", [spec(["numpy", "torch"]), spec(["torch"], OMP_NUM_THREADS="3")], ids=["modules", "environment"]
)
def test_and_nothing_else(pool: Pool, other: LaunchSpec) -> None:
    begun = pool.servers.serving(spec(["torch"]))
    assert pool.servers.serving(other) is not begun
    assert pool.asked_for_another() == [other.preload]


def test_an_environment_may_be_larger_than_a_packet(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    large = {f"LARGE_{number}": "x" * 100_000 for number in range(10)}
    for name, value in large.items():
        monkeypatch.setenv(name, value)
    pool.servers.serving(spec(["torch"], OMP_NUM_THREADS="3"))
    received = receive_packet(pool.first)
    assert received is not None
    packet, (server, env_file) = received
    os.close(server)
    env = os_text.decode(read_file(env_file), dict[str, str])
    assert packet == ["forkserver", ["torch"], False]
    assert large.items() <= env.items() and env["OMP_NUM_THREADS"] == "3"


def test_without_modules_the_first_serves(pool: Pool) -> None:
    assert pool.servers.serving(spec([])) is not pool.servers.serving(spec(["torch"]))
    assert pool.asked_for_another() == []


def test_one_that_has_ended_is_replaced(pool: Pool) -> None:
    server = pool.servers.serving(spec(["torch"]))
    server.close()
    assert pool.servers.serving(spec(["torch"])) is not server
    assert pool.asked_for_another() == [["torch"]]
