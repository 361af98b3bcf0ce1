"""A handler of signals raises in the midst of a call (Ctrl-C): at every step, nothing is left undone that others wait for."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from monarch._runtime.context import root
from monarch.actor import Actor, Channel, endpoint, send, this_host
from monarch.testing import InProcessCluster
from tests.support.interrupts import interrupted_calls
from tests.support.patience import TIMEOUT
from tests.support.tiers import first_of


class Book(Actor):
    def __init__(self) -> None:
        self.notes: list[int] = []

    @endpoint
    def note(self, number: int) -> int:
        self.notes.append(number)
        return number

    @endpoint
    def read(self) -> list[int]:
        return self.notes


def broadcast(books: Any, number: int) -> None:
    books.note.broadcast(number)


def call(books: Any, number: int) -> None:
    assert set(books.note.call(number).get(TIMEOUT).values()) == {number}


def call_one(books: Any, number: int) -> None:
    assert books.slice(gpus=0).note.call_one(number).get(TIMEOUT) == number


def with_timeout(books: Any, number: int) -> None:
    assert books.slice(gpus=1).note.with_timeout(100).call_one(number).get(TIMEOUT) == number


def choose(books: Any, number: int) -> None:
    assert books.note.choose(number).get(TIMEOUT) == number


def stream(books: Any, number: int) -> None:
    assert [future.get(TIMEOUT) for future in books.note.stream(number)] == [number, number]


def send_to_port(books: Any, number: int) -> None:
    port, receiver = Channel[int].open()
    send(books.note, (number,), {}, port)
    assert [receiver.recv().get(TIMEOUT) for _ in range(2)] == [number, number]


def map_items(books: Any, number: int) -> None:
    assert list(books.note.map([number, number])) == [number, number]


ADVERBS: list[Callable[[Any, int], None]] = [
    call_one, call, broadcast, with_timeout, choose, stream, send_to_port, map_items,
]  # fmt: skip


@pytest.mark.parametrize("every", first_of([11, 3, 1], full=2))
@pytest.mark.parametrize("adverb", first_of(ADVERBS, 3))
def test_an_interrupt_at_any_step_of(adverb: Callable[[Any, int], None], every: int, cluster: InProcessCluster) -> None:
    books = this_host().spawn_procs({"gpus": 2}).spawn("books", Book)
    books.read.call().get(TIMEOUT)
    ports = len(root().proc.ports)
    for step, number, notes in interrupted_calls(books, adverb, every):
        assert number in notes and notes == sorted(notes), f"step {step}"
        assert adverb is map_items or len(notes) == len(set(notes)), f"step {step}"
    gc.collect()
    assert len(root().proc.ports) == ports
