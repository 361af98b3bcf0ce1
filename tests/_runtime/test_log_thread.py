"""Logs of the I/O thread: whatever handlers do, that thread neither waits nor fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

import monarch.actor.config
from monarch._runtime import log_thread
from monarch._runtime.loop import Loop
from monarch._wire import logs
from tests.support.patience import TIMEOUT


class Handler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.action: Callable[[], None] = lambda: None

    def emit(self, record: logging.LogRecord) -> None:
        self.action()
        self.texts.append(record.getMessage())


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Handler]:
    # A client that a test before this one has started in the same process has had records begin with their actor.
    monkeypatch.setattr(monarch.actor.config, "prefix_python_logs_with_actor", False)
    logger, handler = logging.getLogger("monarch"), Handler()
    logger.addHandler(handler)
    yield handler
    handler.action = lambda: None
    assert log_thread.flush(TIMEOUT)
    logger.removeHandler(handler)


def say(text: str, *args: object) -> None:
    log_thread.log(logging.getLogger("monarch"), logging.WARNING, text, *args)


def test_records_come_in_order(handler: Handler) -> None:
    for number in range(100):
        say("%d", number)
    assert log_thread.flush(TIMEOUT)
    assert handler.texts == [str(number) for number in range(100)]


def test_a_handler_that_blocks_holds_nobody_up_and_costs_records(handler: Handler) -> None:
    goes_on, waits = threading.Event(), threading.Event()

    def block() -> None:
        waits.set()
        assert goes_on.wait(TIMEOUT)

    handler.action = block
    say("first")
    assert waits.wait(TIMEOUT)
    for number in range(log_thread.KEPT + 7):
        say("%d", number)
    goes_on.set()
    handler.action = lambda: None
    assert log_thread.flush(TIMEOUT)
    assert handler.texts[:2] == ["first", "7 log records were left out: a handler was too slow"]
    assert handler.texts[2:] == [str(number) for number in range(log_thread.KEPT)]


def test_a_handler_that_raises_is_reported(handler: Handler, capfd: pytest.CaptureFixture[str]) -> None:
    handler.action = lambda: 1 / 0
    say("lost")
    say("lost again")
    assert log_thread.flush(TIMEOUT)
    handler.action = lambda: None
    say("and this one is not")
    assert log_thread.flush(TIMEOUT)
    assert handler.texts == ["and this one is not"]
    assert "an internal error on the thread for logs" in capfd.readouterr().err


def test_what_the_wire_logs_comes_this_way(handler: Handler) -> None:
    goes_on = threading.Event()

    def block() -> None:
        assert goes_on.wait(TIMEOUT)

    handler.action = block
    assert Loop  # with any loop comes the thread
    logs.warn("refused %s", "somebody")
    assert handler.texts == []  # and here we are
    goes_on.set()
    assert log_thread.flush(TIMEOUT)
    assert handler.texts == ["refused somebody"]
