"""Ring 3: as tests/_mesh/actors/test_interrupts.py, over sockets of real processes; and a client interrupted all the time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from monarch._runtime.context import root
from monarch.actor import Actor, endpoint
from tests.support.interrupts import interrupted_calls
from tests.support.patience import TIMEOUT
from tests.support.resources import open_files
from tests.support.tiers import first_of, full

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "procs" / "interrupted.py"

# Between making a socket and entering its `with` Python can only leave it to the collector, which says so.
pytestmark = [pytest.mark.procs, pytest.mark.filterwarnings("ignore::ResourceWarning")]


class Book(Actor):
    def __init__(self) -> None:
        self.notes: list[int] = []

    @endpoint
    def note(self, number: int, payload: bytes = b"") -> int:
        self.notes.append(number)
        return number

    @endpoint
    def read(self) -> list[int]:
        notes, self.notes = self.notes, []
        return notes


def call_one(books: Any, number: int) -> None:
    assert books.slice(gpus=0).note.call_one(number).get(TIMEOUT) == number


def large(books: Any, number: int) -> None:
    """More than the socket takes at once."""
    assert books.slice(gpus=0).note.call_one(number, b"x" * 900_000).get(TIMEOUT) == number


def payload(books: Any, number: int) -> None:
    """In shared memory, where there is some."""
    assert len(books.note.call(number, b"x" * 3_000_000).get(TIMEOUT)) == 2


def flood(books: Any, number: int) -> None:
    for _ in range(3):
        books.note.broadcast(number, b"x" * 10_000)


def sockets_and_files() -> int:
    """Open descriptors but for those of the payloads' pool, which has bounds of its own."""
    payloads = root().proc.payloads
    assert payloads is not None
    return open_files() - payloads.statistics()["segments"]


@pytest.mark.parametrize("every", first_of([23, 5, 1], full=2))
@pytest.mark.parametrize("send", first_of([call_one, large, flood, payload], 2))
def test_an_interrupt_at_any_step(send: Callable[[Any, int], None], every: int, procs2: Any) -> None:
    books = procs2.spawn("books", Book)
    send(books, 0)
    books.read.call().get(TIMEOUT)
    ports, files = len(root().proc.ports), sockets_and_files()
    for step, number, notes in interrupted_calls(books, send, every):
        assert notes.count(number) == 1 and notes == sorted(notes), f"step {step}"
        assert send is flood or len(notes) == len(set(notes)), f"step {step}"
    assert len(root().proc.ports) == ports
    assert sockets_and_files() <= files
    books.stop().get(TIMEOUT)


def interrupted(times: int, handler: str, waiters_read: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--times", str(times), "--handler", handler],
        env=os.environ | {"PYTHONPATH": str(ROOT), "MONARCH_WAITERS_READ": waiters_read},
        capture_output=True,
        text=True,
        timeout=TIMEOUT + times / 50,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


WAYS = [("raise", "always"), ("raise", "never"), ("return", "always"), ("return", "auto"), ("raise", "auto")]


@full
@pytest.mark.parametrize(("handler", "waiters_read"), WAYS)
def test_a_client_that_is_interrupted_a_thousand_times(handler: str, waiters_read: str) -> None:
    interrupted(1000, handler, waiters_read)


@pytest.mark.slow
@pytest.mark.parametrize(("handler", "waiters_read"), WAYS)
def test_a_client_that_is_interrupted_twenty_thousand_times(handler: str, waiters_read: str) -> None:
    interrupted(20_000, handler, waiters_read)
