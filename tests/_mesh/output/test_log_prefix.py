"""The prefix of log messages, without processes: a factory of records and whoever is said to be running."""

from __future__ import annotations

import logging
import logging.handlers
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from monarch._mesh.output import log_prefix
from monarch._mesh.output.log_prefix import PrefixingFactory
from monarch._runtime.context import current


class Instance:
    """A running actor, as much of one as the prefix asks for."""

    def __init__(self, display: str) -> None:
        self.name = "worker"
        self.behaviour = self
        self.display = display


class Running:
    def __init__(self, display: str) -> None:
        self.instance = Instance(display)


class Keep(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(PrefixingFactory(logging.LogRecord))
    logger = logging.Logger("user")
    yield logger
    logging.setLogRecordFactory(before)


@pytest.fixture
def keep(logger: logging.Logger) -> Keep:
    handler = Keep()
    logger.addHandler(handler)
    return handler


@pytest.fixture
def running() -> Iterator[None]:
    token = current.set(Running("<root>.<user.Worker worker>"))  # type: ignore[arg-type]
    yield
    current.reset(token)


WHO = "[actor=<root>.<user.Worker worker>] "


@pytest.mark.usefixtures("running")
def test_the_prefix_is_in_the_message_and_beside_it(logger: logging.Logger, keep: Keep) -> None:
    logger.warning("hello %s", "you")
    (record,) = keep.records
    assert (record.msg, record.actor_prefix) == (WHO + "hello %s", WHO)  # type: ignore[attr-defined]
    assert record.getMessage() == WHO + "hello you"


@pytest.mark.usefixtures("running")
def test_every_handler_sees_it_once(logger: logging.Logger, keep: Keep) -> None:
    later = Keep()
    logger.addHandler(later)
    passed: queue.SimpleQueue[Any] = queue.SimpleQueue()
    logger.addHandler(logging.handlers.QueueHandler(passed))
    logger.warning("text")
    behind = Keep()
    behind.handle(passed.get())
    again = Keep()
    again.handle(logging.makeLogRecord(keep.records[0].__dict__))  # as a receiver of records from afar does
    assert [h.texts() for h in (keep, later, behind, again)] == [[WHO + "text"]] * 4


@pytest.mark.usefixtures("running")
def test_empty_messages_stay_empty(logger: logging.Logger, keep: Keep) -> None:
    logger.warning("")
    logger.warning(None)
    assert [record.msg for record in keep.records] == ["", None]
    assert {record.actor_prefix for record in keep.records} == {WHO}  # type: ignore[attr-defined]


@pytest.mark.usefixtures("running")
def test_a_message_may_be_any_object(logger: logging.Logger, keep: Keep) -> None:
    logger.warning({"a": 1})
    logger.warning(ValueError("no %s here"))
    assert keep.texts() == [WHO + "{'a': 1}", WHO + "no %s here"]


@pytest.mark.usefixtures("running")
def test_an_object_that_has_no_text_harms_nobody(logger: logging.Logger, keep: Keep) -> None:
    class Bad:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    bad = Bad()
    logger.warning(bad)
    assert keep.records[0].msg is bad


def test_a_percent_sign_in_a_name_is_no_format(logger: logging.Logger, keep: Keep) -> None:
    token = current.set(Running("<root>.<user.Worker 100%s>"))  # type: ignore[arg-type]
    try:
        logger.warning("%d jobs", 3)
        logger.warning("100%")
    finally:
        current.reset(token)
    who = "[actor=<root>.<user.Worker 100%s>] "
    assert keep.texts() == [who + "3 jobs", who + "100%"]


@pytest.mark.usefixtures("running")
def test_it_can_be_switched_off(logger: logging.Logger, keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    import monarch.actor

    monkeypatch.setattr(monarch.actor.config, "prefix_python_logs_with_actor", False)
    logger.warning("bare")
    (record,) = keep.records
    assert (record.msg, record.actor_prefix) == ("bare", "")  # type: ignore[attr-defined]


@pytest.mark.usefixtures("running")
def test_each_thread_has_the_prefix_of_its_own_actor(logger: logging.Logger, keep: Keep) -> None:
    def other() -> None:
        current.set(Running("<other>"))  # type: ignore[arg-type]
        logger.warning("theirs")

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    logger.warning("ours")
    assert keep.texts() == ["[actor=<other>] theirs", WHO + "ours"]


@pytest.mark.usefixtures("running")
def test_a_factory_of_the_program_below_is_kept(logger: logging.Logger, keep: Keep) -> None:
    class Own(logging.LogRecord):
        pass

    logging.setLogRecordFactory(PrefixingFactory(Own))
    logger.warning("text")
    assert type(keep.records[0]) is Own and keep.texts() == [WHO + "text"]


def test_installing_twice_is_installing_once(logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_prefix, "_installed", False)
    logging.setLogRecordFactory(logging.LogRecord)
    log_prefix.install()
    made = logging.getLogRecordFactory()
    assert isinstance(made, PrefixingFactory)

    def around(*args: Any, **kwargs: Any) -> logging.LogRecord:
        return made(*args, **kwargs)

    logging.setLogRecordFactory(around)
    log_prefix.install()
    assert logging.getLogRecordFactory() is around
