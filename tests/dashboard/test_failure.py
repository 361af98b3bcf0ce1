"""The page of a failure: owners, what failed as well, last lines."""

from __future__ import annotations

from typing import Any

import pytest

from examples.simulated_dashboard import FAILED, STRAGGLER
from monarch.dashboard.pages import failure
from monarch.dashboard.pages.api import NotFound, PageData
from monarch.dashboard.pages.logs_data import LogFilter
from monarch.telemetry.store import Store


@pytest.mark.parametrize(
    ("name", "owners"),
    [
        ("<root>", ["root"]),
        ("<root>.<train.Trainer trainers{'gpus': 1/2}>", ["root", "train.Trainer trainers{'gpus': 1/2}"]),
        ("<root>.<a.B b>.<c.D d{'x': 0/1}>", ["root", "a.B b", "c.D d{'x': 0/1}"]),
        (None, [""]),
    ],
)
def test_owners(name: str | None, owners: list[str]) -> None:
    assert failure.owners(name) == owners


@pytest.mark.parametrize(
    ("name", "process"),
    [
        ("trainers-42<f7>.workers-42<f8>@tcp://node6:26600", ("workers", 42)),
        ("a-0<f7>.my-mesh-3<f8>@x", ("my-mesh", 3)),
        ("client@unix:/run/client", None),
        (f"x.a-{'9' * 5000}<b", None),
        ("", None),
    ],
)
def test_the_process_of_an_actor(name: str, process: tuple[str, int] | None) -> None:
    assert failure.process_of(name) == process


def row(number: int, at: int, **more: Any) -> dict[str, Any]:
    name = f"<root>.<train.Trainer trainers{{'gpus': {number}/4}}>"
    return {
        "id": number, "actor_id": number, "display_name": name, "full_name": f"t-{number}", "timestamp_us": at,
        "reason": f"Traceback\n  x\nOSError: {number}", "root_cause": None, "root_cause_name": None,
        "is_propagated": None, **more,
    }  # fmt: skip


def test_what_failed_first_and_what_because_of_it() -> None:
    failed = [row(3, 30, root_cause_name="t 1", is_propagated=True), row(1, 10)]
    made = failure.failure(failed[0], failed, [{"id": 9, "display_name": "<root>"}, *failed])
    assert (made["failed"], made["first"], made["failed_us"], made["root_cause"]) == (True, False, 30, "t 1")
    assert made["owners"] == [
        {"name": "root", "actor_id": "9"},
        {"name": "Trainer trainers{'gpus': 3/4}", "actor_id": "3"},
    ]
    assert [(one["actor_id"], one["reason"]) for one in made["others"]] == [("1", "OSError: 1")]
    assert failure.failure(failed[1], failed, failed)["first"]
    well = failure.failure(row(2, 5), failed, failed)
    assert (well["failed"], well["reason"], len(well["others"])) == (False, "", 2)


def test_the_lines_before_it(recorded: Any) -> None:
    api = recorded.api()
    made = api.failure(recorded.job.actors["trainers"][FAILED])
    assert [line["level"] for line in made["logged"]] == ["ERROR", "FAILED"]
    assert made["printed"][-1]["text"].startswith("torch.OutOfMemoryError") and made["printed"][0]["rank"] == FAILED
    well = api.failure(recorded.job.actors["trainers"][STRAGGLER])
    assert not well["failed"] and well["logged"] == []
    with pytest.raises(NotFound, match="actor not found"):
        api.failure(12)


def test_an_actor_whose_process_died_before_it_said_who_it_was() -> None:
    store = Store()
    try:
        reason = "The actor <root>.<t.A a> and all its descendants have failed"
        store.insert("actor_status_events", [(1, 50, 77, "Failed", reason), (2, 40, 78, "Idle", None)])
        api = PageData(store, None, None)
        assert api.logs.logged(LogFilter())["failures"] == [{"us": 50, "actor_id": "77"}]
        made = api.failure(77)
        assert (made["failed"], made["first"], made["failed_us"], made["reason"]) == (True, True, 50, reason)
        assert made["name"] == made["owners"][0]["name"] == "an actor of a process that died early"
        assert (made["actor"]["id"], made["others"], made["printed"]) == ("77", [], [])
        assert not api.failure(78)["failed"]
        with pytest.raises(NotFound, match="actor not found"):
            api.failure(79)
    finally:
        store.close()


def test_a_program_that_cannot_be_asked_is_said(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(wanted: Any) -> Any:
        raise RuntimeError("it is stopped")

    monkeypatch.setattr(recorded, "output", gone)
    made = recorded.api().failure(recorded.job.actors["trainers"][FAILED])
    assert (made["printed"], made["printed_note"]) == ([], "the program cannot be asked: it is stopped")
    saved = PageData(recorded.store, None, None).failure(recorded.job.actors["trainers"][FAILED])
    assert saved["failed"] and saved["printed"] == []
