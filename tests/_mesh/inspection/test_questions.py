"""Tests of what a process answers to questions, without connections: the answers are caught as they are sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from monarch._mesh.inspection import questions, wait_graph
from monarch._mesh.inspection.questions import AT_ONCE, Answering, Question
from monarch._wire import message
from monarch._wire.frame import Frame
from monarch._wire.message import FAILED, VALUE, Answer, Ask
from tests.support.patience import TIMEOUT


class Asked:
    """Asks, and waits for what comes back."""

    def __init__(self, table: dict[str, Question]) -> None:
        self.answering = Answering("who", table, self._sent)
        self.answers: list[tuple[Answer, bytes, int]] = []
        self._came = threading.Condition()

    def _sent(self, connection: Any, answer: Answer, body: bytes) -> None:
        with self._came:
            self.answers.append((answer, body, threading.get_ident()))
            self._came.notify_all()

    def ask(self, question: str, rank: int = 0) -> None:
        self.answering.receive(None, Ask(7, rank, question), Frame(b"", b"argument", []))  # type: ignore[arg-type]

    def wait(self, count: int = 1) -> list[tuple[Answer, bytes, int]]:
        with self._came:
            assert self._came.wait_for(lambda: len(self.answers) >= count, TIMEOUT)
        return self.answers


def refused(body: bytes) -> str:
    return str(message.decode(body).report)  # type: ignore[union-attr]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Gives what the question `q` of the module wait_graph does."""
    table: dict[str, Any] = {"fn": lambda who, argument: f"{who} {argument.decode()}".encode()}

    def answer(who: str, argument: bytes) -> bytes:
        made: bytes = table["fn"](who, argument)
        return made

    monkeypatch.setattr(wait_graph, "q", answer, raising=False)
    yield table


QUICK = {"q": Question("_mesh.inspection.wait_graph", "q", quick=True)}
SLOW = {"q": Question("_mesh.inspection.wait_graph", "q")}


def test_a_quick_question_is_answered_by_the_thread_that_receives_it(answers: dict[str, Any]) -> None:
    asked = Asked(QUICK)
    asked.ask("q", rank=3)
    assert asked.answers == [(Answer(7, 3, VALUE), b"who argument", threading.get_ident())]


def test_another_has_a_thread_of_its_own(answers: dict[str, Any]) -> None:
    asked = Asked(SLOW)
    asked.ask("q")
    ((answer, body, thread),) = asked.wait()
    assert (answer, body) == (Answer(7, 0, VALUE), b"who argument")
    assert thread != threading.get_ident()


@pytest.mark.parametrize("table", [QUICK, SLOW], ids=["quick", "slow"])
def test_an_exception_is_told(answers: dict[str, Any], table: dict[str, Question]) -> None:
    answers["fn"] = lambda who, argument: 1 / 0
    asked = Asked(table)
    asked.ask("q")
    ((answer, body, _),) = asked.wait()
    assert answer.kind == FAILED
    assert refused(body) == "ZeroDivisionError: division by zero"


def test_a_question_that_nobody_knows() -> None:
    asked = Asked({})
    asked.ask("x" * 1000)
    ((answer, body, _),) = asked.answers
    assert answer.kind == FAILED
    assert refused(body) == f"this process knows no question {'x' * 60!r}: is it of another version?"


def test_a_module_that_is_not_installed() -> None:
    asked = Asked({"q": Question("_mesh.inspection.missing")})
    asked.ask("q")
    ((_, body, _),) = asked.wait()
    assert refused(body) == "ModuleNotFoundError: No module named 'monarch._mesh.inspection.missing'"


def test_more_than_a_few_at_once_are_refused(answers: dict[str, Any]) -> None:
    go_on = threading.Event()
    answers["fn"] = lambda who, argument: b"" if go_on.wait(TIMEOUT) else b"late"
    asked = Asked(SLOW)
    for rank in range(AT_ONCE + 1):
        asked.ask("q", rank)
    ((answer, body, _),) = asked.answers
    assert answer.rank == AT_ONCE
    assert refused(body) == f"it answers {AT_ONCE} questions already; ask again later"
    go_on.set()
    assert {body for answer, body, _ in asked.wait(AT_ONCE + 1) if answer.kind == VALUE} == {b""}


@pytest.mark.parametrize("name", sorted({**questions.QUESTIONS, **questions.AGENT_QUESTIONS}))
def test_each_question_of_the_tables_has_its_function(name: str) -> None:
    import importlib

    for table in (questions.QUESTIONS, questions.AGENT_QUESTIONS):
        if name in table:
            assert callable(getattr(importlib.import_module(f"monarch.{table[name].module}"), table[name].function))


def test_a_module_that_is_being_loaded_is_waited_for_on_a_thread(answers: dict[str, Any], monkeypatch: Any) -> None:
    """Two questions at once, the first ones of their kind: half a module has no answer yet."""
    monkeypatch.setattr(wait_graph.__spec__, "_initializing", True, raising=False)
    asked = Asked(QUICK)
    asked.ask("q")
    ((answer, _body, thread),) = asked.wait()
    assert answer.kind == VALUE
    assert thread != threading.get_ident()
