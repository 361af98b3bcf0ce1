"""Tests of what the client does for an editor, with a rank that is made up."""

from __future__ import annotations

import json
import socket
from typing import Any

import msgspec
import pytest

from monarch.admin.debugging import EDITOR, Visit
from monarch.debugger import visit
from monarch.debugger.editor_rank import EditorAttached, EditorInput, EditorOutput

EDIT = msgspec.msgpack.encode(Visit(EDITOR, mesh="mesh", rank=0))


class Rank:
    """`asked`: the questions it got. `answers`: what it says to the editor's bytes."""

    def __init__(self, answers: list[EditorOutput]) -> None:
        self.asked: list[str] = []
        self.heard: list[EditorInput] = []
        self._answers = answers

    def ask(self, address: str, question: str, argument: bytes, timeout: float) -> bytes:
        self.asked.append(question)
        if question == visit._BEGIN_QUESTION:
            return msgspec.msgpack.encode(EditorAttached(7, "host", 1, "/"))
        self.heard.append(msgspec.msgpack.decode(argument, type=EditorInput))
        if question == visit._END_QUESTION:
            return b""
        if not self._answers:
            raise ValueError("its process has ended")
        return msgspec.msgpack.encode(self._answers.pop(0))


def visited(monkeypatch: pytest.MonkeyPatch, answers: list[EditorOutput]) -> tuple[Rank, socket.socket, Any]:
    rank = Rank(answers)
    monkeypatch.setattr(visit, "address_of", lambda mesh, number: "unix:/x/p.0")
    monkeypatch.setattr(visit, "_ask", rank.ask)
    return rank, *socket.socketpair()


def test_who_has_gone_before_he_hears_that_he_is_attached_leaves_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, editor, its = visited(monkeypatch, [])
    editor.close()
    with its:
        visit.serve(its, EDIT)
    assert rank.asked == [visit._BEGIN_QUESTION, visit._END_QUESTION]
    assert rank.heard == [EditorInput(7, last=True)]


def test_a_rank_that_ends_ends_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, editor, its = visited(monkeypatch, [EditorOutput(b"stopped")])
    with its, editor:
        editor.sendall(b"continue")
        visit.serve(its, EDIT)
        its.close()
        first, _, rest = editor.makefile("rb").read().partition(b"\n")
    assert json.loads(first) == {"host": "host", "pid": 1, "folder": "/"}
    assert rest == b"stopped"
    assert rank.asked[-1] == visit._END_QUESTION
