"""The doctor's findings on the pages: the last look, its sentence, and what was found before."""

from __future__ import annotations

from typing import Any

import pytest

from monarch._mesh.inspection.diagnosis import Diagnosis, Finding
from monarch._mesh.inspection.doctor import FRESH
from monarch.dashboard.pages import latest_findings, shapes
from monarch.dashboard.pages.api import PageData
from monarch.dashboard.pages.latest_findings import FindingHistory, LatestFindings, sentence
from monarch.telemetry.store import Store


def finding(kind: str, title: str = "it waits", ranks: tuple[int, ...] = (1,)) -> Finding:
    return Finding(kind, title, ["seen"], "look there", "trainers", list(ranks))


class Looks:
    """A doctor that finds what it is given, one look after the other."""

    def __init__(self, *found: list[Finding] | Exception) -> None:
        self.found = list(found)
        self.time = 0.0

    def look(self) -> Diagnosis:
        found = self.found.pop(0)
        if isinstance(found, Exception):
            raise found
        return Diagnosis(found, ["it loads"], 4)

    def latest(self) -> LatestFindings:
        return LatestFindings(self.look, lambda: self.time, lambda look: look(), lambda: 100.0 + self.time)


def test_a_finding_lasts_until_a_look_without_it() -> None:
    history = FindingHistory()
    history.note(1.0, [finding("collective", "for 1 s"), finding("memory")])
    history.note(2.0, [finding("collective", "for 2 s")])
    history.note(3.0, [finding("memory")])
    past = [(one.finding.kind, one.finding.title, one.since, one.until) for one in history.newest_first()]
    assert past == [
        ("memory", "it waits", 3.0, None),
        ("memory", "it waits", 1.0, 2.0),
        ("collective", "for 2 s", 1.0, 3.0),
    ]


def test_the_history_is_bounded_and_keeps_what_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest_findings, "KEPT", 3)
    history = FindingHistory()
    for now in range(6):
        history.note(now, [finding("stays", ranks=()), finding("goes", ranks=(now,))])
    assert [one.finding.kind for one in history.newest_first()] == ["goes", "goes", "stays"]
    history.note(9.0, [finding("many", ranks=(rank,)) for rank in range(5)])
    assert len(history.newest_first()) == 3


@pytest.mark.parametrize(
    ("found", "problem", "text"),
    [
        (None, "", "The doctor looks for the first time."),
        (None, "it is stopped", "The doctor cannot ask the program: it is stopped"),
        (Diagnosis([], [], 64), "", "Nothing is wrong that can be seen from outside: 64 processes looked at."),
        (Diagnosis([], [], 1), "", "Nothing is wrong that can be seen from outside: 1 process looked at."),
        (Diagnosis([finding("a", "rank 3 waits")], [], 4), "", "rank 3 waits"),
        (Diagnosis([finding("a", "rank 3 waits")] * 3, [], 4), "", "rank 3 waits (and 2 more findings)"),
    ],
)
def test_the_sentence(found: Diagnosis | None, problem: str, text: str) -> None:
    assert sentence(found, problem) == text


def test_what_is_told() -> None:
    looks = Looks([finding("collective")], [], OSError("gone"))
    latest = looks.latest()
    told = latest.told()
    assert (told["state"], told["sentence"], told["looked_at"], told["at_us"]) == ("wrong", "it waits", 4, 100_000_000)
    assert told["findings"][0]["evidence"] == ["seen"] and told["notes"] == ["it loads"]
    assert told["history"][0]["until_us"] is None and latest.looked
    looks.time += FRESH
    assert latest.told()["state"] == "well"
    looks.time += FRESH
    told = latest.told()
    assert (told["state"], told["sentence"], latest.looked) == (
        "unknown",
        "The doctor cannot ask the program: gone",
        False,
    )
    assert [(one["kind"], one["until_us"]) for one in told["history"]] == [("collective", 110_000_000)]


def test_healthy_is_what_the_doctor_says() -> None:
    assert shapes.health_of({"idle": 2}, looked=False)["health_status"] == "unknown"
    assert shapes.health_of({"idle": 2}, looked=True)["health_status"] == "healthy"
    assert shapes.health_of({"idle": 1, "failed": 1}, looked=False)["health_status"] == "unhealthy"


def test_the_doctor_of_the_pages(recorded: Any) -> None:
    looks = Looks([], [finding("collective")])
    store = Store()
    try:
        assert PageData(store, None, None).doctor()["sentence"].startswith("The program does not run")
        data = PageData(store, recorded, lambda: 5.0, looks.latest())
        told = data.doctor()
        assert (told["state"], told["now_us"]) == ("well", 5_000_000)
        looks.time += FRESH
        summary = data.summary()
        assert summary["doctor"] == {"state": "wrong", "sentence": "it waits", "at_us": 110_000_000}
        assert summary["health_status"] == "unhealthy"
    finally:
        store.close()
