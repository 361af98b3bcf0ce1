"""The questions that every process of a program answers about itself, by name: see QUESTIONS.

Arguments and answers are msgpack: nothing that is asked or answered here is unpickled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from monarch._linux.locks import Lock
from monarch._mesh import plugins
from monarch._runtime.loop import start_thread
from monarch._wire import message
from monarch._wire.frame import Frame
from monarch._wire.message import FAILED, VALUE, Answer, Ask, Failure
from monarch._wire.transport.base import Connection

AT_ONCE = 8  # questions that a process answers on threads at a time; it refuses further ones
_LONGEST = 60  # characters of an unknown question's name that are said

Answerer = Callable[[Any, bytes], bytes]  # (Proc or host agent, argument) -> answer
Send = Callable[[Connection, Answer, bytes], None]


class Question(NamedTuple):
    """`function` of `monarch.<module>` answers it. It is given the Proc (the host agent) and the argument.

    `quick`: on the I/O thread, so also while user code is stuck: under a millisecond, no user code, no waiting. Others have
    a thread of their own, and so has the first of the quick ones whose module is not loaded yet.
    """

    module: str
    function: str = "answer"
    quick: bool = False


def _outer(name: str, quick: bool = False) -> Question:
    """Returns the question of that name, which an outer layer answers."""
    module, function = plugins.OUTER[name]
    return Question(module, function, quick)


# Answered by the client and by every proc.
QUESTIONS: dict[str, Question] = {
    "clock": Question("_mesh.inspection.small_answers", "answer_clock", quick=True),
    "debugger.editor.begin": _outer("debugger.editor.begin"),
    "debugger.editor.check": _outer("debugger.editor.check"),
    "debugger.editor.end": _outer("debugger.editor.end"),
    "debugger.editor.exchange": _outer("debugger.editor.exchange", quick=True),
    "debugger.on_exception": _outer("debugger.on_exception"),
    "log.level": Question("_mesh.inspection.small_answers", "answer_log_level"),
    "config": Question("_mesh.inspection.description", "answer_config", quick=True),
    "samples": Question("_mesh.inspection.sampler"),
    "torch.start": Question("_mesh.inspection.torch_profile", "start"),
    "torch.stop": Question("_mesh.inspection.torch_profile", "stop"),
    "torch.take": Question("_mesh.inspection.torch_profile", "take"),
    "tree": Question("_mesh.inspection.description", quick=True),
    "waits": Question("_mesh.inspection.wait_graph", quick=True),
    "stacks": Question("_mesh.inspection.thread_stacks", quick=True),
    "locals": Question("_mesh.inspection.thread_stacks", "answer_with_locals"),
    "failures": Question("_mesh.inspection.small_answers", "answer_failures", quick=True),
    "tables": Question("_mesh.inspection.status_tables", quick=True),
    "collectives": Question("_mesh.inspection.collectives"),
    "telemetry.record": Question("_mesh.inspection.recording", "switch"),
    "telemetry.measure": _outer("telemetry.measure"),
    "telemetry.flush": Question("_mesh.inspection.recording", "flush"),
}

# Answered by host agents.
AGENT_QUESTIONS: dict[str, Question] = {
    "output": Question("_mesh.inspection.small_answers", "answer_output", quick=True),
    "tree": Question("_mesh.inspection.host_description", quick=True),
    "stacks_by_signal": Question("_mesh.inspection.agent_stacks", "answer_by_signal"),
    "native_stacks": Question("_mesh.inspection.agent_stacks", "answer_native"),
    "host": Question("_mesh.inspection.agent_stacks", "answer_host"),
}


def _loaded(name: str) -> ModuleType | None:
    """A module that is there as a whole: one that another thread is loading is in sys.modules already."""
    module = sys.modules.get(name)
    return None if module is None or getattr(module.__spec__, "_initializing", False) else module


class Answering:
    """The questions that one process can answer. `send` may be called by any thread."""

    def __init__(self, who: Any, questions: Mapping[str, Question], send: Send) -> None:
        self._who = who
        self._questions = questions
        self._send = send
        self._busy = 0
        self._lock = Lock()

    def receive(self, connection: Connection, ask: Ask, frame: Frame) -> None:
        """Receives a question, on the I/O thread."""
        question = self._questions.get(ask.question)
        argument = bytes(frame.body)
        if question is None:
            name = ask.question[:_LONGEST]
            return self._refuse(connection, ask, f"this process knows no question {name!r}: is it of another version?")
        loaded = _loaded(f"monarch.{question.module}")
        if question.quick and loaded is not None:
            return self._answer(connection, ask, getattr(loaded, question.function), argument)
        with self._lock:
            if self._busy >= AT_ONCE:
                return self._refuse(connection, ask, f"it answers {AT_ONCE} questions already; ask again later")
            self._busy += 1
        try:
            start_thread(self._on_thread, "monarch-answer", connection, ask, question, argument)
        except RuntimeError as exc:  # no more threads
            self._done()
            self._refuse(connection, ask, str(exc))

    def _on_thread(self, connection: Connection, ask: Ask, question: Question, argument: bytes) -> None:
        try:

            def answer(who: Any, argument: bytes) -> bytes:
                made: bytes = getattr(plugins.load(question.module), question.function)(who, argument)
                return made

            self._answer(connection, ask, answer, argument)
        finally:
            self._done()

    def _answer(self, connection: Connection, ask: Ask, answer: Answerer, argument: bytes) -> None:
        try:
            body = answer(self._who, argument)
        except Exception as exc:
            self._refuse(connection, ask, f"{type(exc).__name__}: {exc}")
        else:
            self._send(connection, Answer(ask.port, ask.rank, VALUE), body)

    def _refuse(self, connection: Connection, ask: Ask, why: str) -> None:
        self._send(connection, Answer(ask.port, ask.rank, FAILED), message.encode(Failure(why)))

    def _done(self) -> None:
        with self._lock:
            self._busy -= 1


def serve(proc: Any) -> None:
    """Has a process answer every question of the table."""
    answering = Answering(
        proc, QUESTIONS, lambda connection, answer, body: proc.answer(connection.remote, answer, body, ())
    )
    proc.receivers[Ask] = answering.receive


def serve_agent(agent: Any) -> None:
    """Has a host agent answer the questions that are for it."""

    def send(connection: Connection, answer: Answer, body: bytes) -> None:
        if agent.loop.in_loop():
            agent.send(connection, answer, body)
        else:
            agent.loop.call_soon(lambda: agent.send(connection, answer, body))

    agent.receivers[Ask] = Answering(agent, AGENT_QUESTIONS, send).receive
