"""Tests of who gets into the way into the cluster, which is a port of this machine."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from monarch.job.kubernetes import gateway
from monarch.job.kubernetes.gateway import ForwardTarget, Gateway
from tests.support.patience import TIMEOUT
from tests.support.users import needs_root, stranger_says


class Echo:
    """A forward that gives back what it is given."""

    opened = 0

    def __init__(self, target: ForwardTarget) -> None:
        Echo.opened += 1
        self.socket, self._other = socket.socketpair()
        self._other.sendall(b"a pod")
        self._other.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()
        self._other.close()


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    monkeypatch.setattr(gateway, "_PodForward", Echo)
    monkeypatch.setattr(Echo, "opened", 0)
    target: Any = ForwardTarget(None, "space", "pod", 1)  # type: ignore[arg-type]
    made = Gateway(target)
    yield made
    made.close()


def ask(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
        return connection.recv(100)


@needs_root
def test_programs_of_other_users_are_refused(entered: Gateway) -> None:
    assert stranger_says(entered.port, b"let me in") == b""
    assert Echo.opened == 0
    assert ask(entered.port) == b"a pod"


def test_a_program_that_is_out_of_descriptors_accepts_again_when_it_has_some(
    entered: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, failing = socket.socket.accept, [errno.EMFILE, errno.ENFILE]

    def fails(listening: socket.socket) -> Any:
        if failing:
            number = failing.pop()
            raise OSError(number, os.strerror(number))
        return accept(listening)

    assert ask(entered.port) == b"a pod"
    monkeypatch.setattr(socket.socket, "accept", fails)
    for _ in range(3):  # one is in accept() already
        assert ask(entered.port) == b"a pod"
    assert failing == []
