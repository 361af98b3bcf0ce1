"""Profiles: when they may be entered and exported, which rows they ask for, what they say."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch import trace
from monarch._mesh.inspection.survey_answers import SurveyAnswers
from monarch.job import LocalJob
from monarch.telemetry.store import Store
from monarch.trace.profiling import Profile, actor_names, spans
from monarch.trace.spans import CALLER


class _Telemetry:
    """A store in this process, asked as the client of one elsewhere. `limit`: rows that a result may have."""

    limit: int | None = None

    def __init__(self) -> None:
        self.store = Store()

    def query(self, sql: str, timeout: float | None = None) -> dict[str, Any]:
        found = self.store.query(sql, limit=self.limit)
        return {"rows": found.dicts(), "missing_hosts": [], "truncated": found.truncated, "note": found.note}

    def add(self, number: int, enter: int, leave: int | None, process: str = "p", **fields: Any) -> None:
        target = CALLER if "mesh" in fields else "monarch_hyperactor::telemetry"
        row = (process, number, "span", target, "INFO", json.dumps(fields), enter, None, "", None, None)
        self.store.insert("spans", [row])
        events = [(process, number, enter, "enter")]
        if leave is not None:
            events.append((process, number, leave, "exit"))
        self.store.insert("span_events", events)


@pytest.fixture
def telemetry() -> Iterator[_Telemetry]:
    made = _Telemetry()
    yield made
    made.store.close()


def _nobody(question: str, argument: bytes, timeout: float, only: Any) -> SurveyAnswers:
    return SurveyAnswers({"h/client": b""}, {})


def _profile(telemetry: Any, **how: Any) -> tuple[Profile, list[str]]:
    said: list[str] = []
    return Profile(lambda: telemetry, _nobody, say=said.append, **how), said


def test_what_happened_in_the_block_is_in_the_file(telemetry: _Telemetry, tmp_path: Path) -> None:
    telemetry.add(1, 10, 20, actor_id=5, name="long ago")
    ready: list[Profile] = []
    profile, said = _profile(telemetry, on_trace_ready=ready.append)
    with profile:
        now = time.time_ns() // 1000
        telemetry.add(2, now, now + 50, actor_id=5, name="step", correlation_id=3)
        telemetry.add(
            3, now - 9_000_000, None, "q", actor_id=6, mesh="m", method="f", call_name="call", correlation_id=3
        )
    assert ready == [profile]
    path = profile.export_perfetto_trace(tmp_path / "a.pftrace")
    assert profile.path == path and path.stat().st_mode & 0o777 == 0o600
    assert said == ["Wrote 2 spans from 2 actors on 2 procs."]
    events = json.loads(profile.export_chrome_trace(tmp_path / "a.json").read_text())["traceEvents"]
    slices = {event["name"]: event for event in events if event["ph"] == "X"}
    assert set(slices) == {"step", "m.f.call()"}
    assert slices["m.f.call()"]["args"]["profile.start_clipped"] is True
    assert slices["m.f.call()"]["args"]["profile.end_event_missing"] is True


def test_a_profile_is_entered_once_and_exported_when_it_is_over(telemetry: _Telemetry, tmp_path: Path) -> None:
    profile, _ = _profile(telemetry)
    with pytest.raises(RuntimeError, match="profile context is not active"):
        profile.export_perfetto_trace(tmp_path / "a")
    with profile, pytest.raises(RuntimeError, match="profile context has not completed"):
        profile.export_perfetto_trace(tmp_path / "a")
    with pytest.raises(RuntimeError, match="profile context cannot be reused"), profile:
        pass


def test_no_callback_when_the_block_raised(telemetry: _Telemetry) -> None:
    ready: list[Profile] = []
    profile, _ = _profile(telemetry, on_trace_ready=ready.append)
    with pytest.raises(KeyError), profile:
        raise KeyError
    assert ready == []


def test_without_telemetry_it_says_how_to_get_it(telemetry: _Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"call monarch\.telemetry\.start\(\) before"), trace.profile():
        pass
    job = LocalJob()
    with pytest.raises(RuntimeError, match=r"requires distributed telemetry; call job\.enable_telemetry"):
        job.profile()
    job.enable_telemetry()
    with pytest.raises(RuntimeError, match=r"distributed telemetry is not active; call job\.state\(\) before"):
        job.profile()
    monkeypatch.delenv("USER", raising=False)
    profile, _ = _profile(telemetry)
    with profile:
        pass
    with pytest.raises(RuntimeError, match="USER is not set; pass an explicit output path"):
        profile.export_perfetto_trace()


def test_many_rows_come_page_by_page(telemetry: _Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch.trace.profiling._PAGE", 3)
    for number in range(10):  # several at one time, and in several processes
        telemetry.add(number, 100 + number // 4, 200, f"it's {number % 2}", actor_id=1)
    rows = list(spans(telemetry, 0, 1000))
    assert sorted((row.process_id, row.id) for row in rows) == sorted((f"it's {n % 2}", n) for n in range(10))
    assert all(row.exit == 200 for row in rows)


def test_a_result_that_is_cut_is_gone_on_with(telemetry: _Telemetry) -> None:
    telemetry.limit = 3
    for number in range(10):
        telemetry.add(number, 100 + number, 200, actor_id=number)
    actors = [(number, 0, 0, 0, f"trainer{number}@u", "trainer") for number in range(7)]
    telemetry.store.insert("actors", actors)
    assert [row.id for row in spans(telemetry, 0, 1000)] == list(range(10))
    assert [name.name for name in actor_names(telemetry).values()] == [f"trainer{number}" for number in range(7)]


def test_a_trace_that_would_lack_rows_is_an_error() -> None:
    class Cuts:
        def query(self, sql: str, timeout: float | None = None) -> dict[str, Any]:
            return {"rows": [], "truncated": True, "note": "it is cut at 256 MiB"}

    with pytest.raises(RuntimeError, match="the trace would lack some: it is cut at 256 MiB"):
        list(spans(Cuts(), 0, 1000))
