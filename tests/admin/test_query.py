"""Tests of what is asked of one process, when its answer is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from monarch._mesh.inspection.survey_answers import SurveyAnswers
from monarch.admin.pyspy import ProfileWanted
from monarch.admin.query import ProgramQueries, ProgramQueryFailed


@pytest.mark.parametrize("answer", [b"\xc1", b"\x01", b"\x91" * 100_000], ids=["no msgpack", "another kind", "deep"])
@pytest.mark.parametrize("what", ["config", "stacks", "flame", "_events"])
def test_an_answer_that_cannot_be_read_is_said(what: str, answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    program: Any = SimpleNamespace(ask=lambda *_, only, **__: SurveyAnswers({only[0]: answer}, {}))
    monkeypatch.setattr(ProgramQueries, "_process", lambda *_: "here/a.0")
    queries, tree = ProgramQueries(program), Any
    if what == "_events":
        assert queries._events("here/a.0", "key") is None
        return
    more = [ProfileWanted()] if what == "flame" else []
    with pytest.raises(ProgramQueryFailed, match=r"here/a\.0: its answer cannot be read") as failed:
        getattr(queries, what)(tree, "a", *more)
    assert failed.value.status == 500
