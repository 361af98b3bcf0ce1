"""Lines of the log and of what is printed: by rank, mesh, level and text, around a time, page by page."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from examples.simulated_dashboard import FAILED, STRAGGLER
from monarch._http.answering import BadRequest
from monarch.dashboard.pages import logs_data
from monarch.dashboard.pages.api import PageData
from monarch.dashboard.pages.logs_data import LogFilter, ranks_of
from monarch.telemetry.store import Store


def texts(found: dict[str, Any]) -> list[str]:
    return [line["text"].partition("\n")[0] for line in found["lines"]]


def test_all_lines_in_their_order(recorded: Any) -> None:
    found = recorded.api().logs.logged(LogFilter())
    times = [line["us"] for line in found["lines"]]
    assert times == sorted(times) and texts(found)[0] == "step 0 begins"
    assert [line["level"] for line in found["lines"]][-2:] == ["ERROR", "FAILED"]
    last = found["lines"][-1]
    assert (last["mesh"], last["rank"], last["actor_id"]) == (
        "trainers", FAILED, str(recorded.job.actors["trainers"][FAILED])
    )  # fmt: skip
    assert found["lines"][0]["where"] == "/home/me/train.py:85" and found["lines"][0]["logger"] == "train"
    assert (found["older"], found["newer"], found["printed"]) == (False, False, True)
    assert found["failures"] == [{"us": recorded.job.failure_us, "actor_id": last["actor_id"]}]
    assert found["meshes"] == ["client", "evaluator", "loaders", "trainers"]


@pytest.mark.parametrize(
    ("wanted", "ranks", "count"),
    [
        (LogFilter(ranks=((STRAGGLER, STRAGGLER),)), {STRAGGLER}, 2),
        (LogFilter(ranks=((0, 0), (40, 50))), {0, FAILED}, 12),
        (LogFilter(mesh="loaders"), set(), 0),
        (LogFilter(mesh="trainers", level="WARNING"), {STRAGGLER, FAILED}, 4),
        (LogFilter(level="ERROR"), {FAILED}, 2),
        (LogFilter(text="GRADIENTS"), {FAILED}, 1),
        (LogFilter(text="it's % \\ _"), set(), 0),
        (LogFilter(mesh="x' OR 1=1 --"), set(), 0),
    ],
)
def test_what_is_chosen(recorded: Any, wanted: LogFilter, ranks: set[int], count: int) -> None:
    found = recorded.api().logs.logged(wanted)
    assert {line["rank"] for line in found["lines"]} == ranks and len(found["lines"]) == count


def test_pages_of_lines(recorded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_data, "LINES", 4)
    logs = recorded.api().logs
    newest = logs.logged(LogFilter(level="INFO"))
    assert len(newest["lines"]) == 4 and newest["older"] and not newest["newer"]
    before = logs.logged(LogFilter(level="INFO", before_us=newest["lines"][0]["us"]))
    assert before["lines"][-1]["us"] < newest["lines"][0]["us"] and before["newer"]
    around = logs.logged(LogFilter(at_us=recorded.job.failure_us))
    assert [line["level"] for line in around["lines"]] == ["ERROR", "FAILED"] and around["older"]
    earlier = logs.logged(LogFilter(at_us=before["lines"][0]["us"]))
    assert len(earlier["lines"]) == 4 and earlier["newer"] and earlier["lines"][1]["us"] == before["lines"][0]["us"]


@pytest.mark.parametrize(
    ("text", "ranks"), [("", ()), ("3", ((3, 3),)), ("0, 2-4,", ((0, 0), (2, 4))), ("7-7", ((7, 7),))]
)
def test_ranks(text: str, ranks: tuple[tuple[int, int], ...]) -> None:
    assert ranks_of(text) == ranks


@pytest.mark.parametrize("text", ["x", "4-2", "-1", "1-", "1;2", "9" * 12])
def test_what_are_no_ranks(text: str) -> None:
    with pytest.raises(BadRequest, match="ranks are such as 3 or 0,2-4"):
        ranks_of(text)


def test_a_level_that_is_none(recorded: Any) -> None:
    with pytest.raises(BadRequest, match="a level is one of DEBUG, INFO"):
        recorded.api().logs.logged(LogFilter(level="LOUD"))


def test_what_is_printed(recorded: Any) -> None:
    logs = recorded.api().logs
    found = logs.printed(LogFilter(ranks=((FAILED, FAILED),)))
    assert (
        len(found["lines"]) == 14
        and texts(found)[-1].startswith("torch.OutOfMemoryError")
        and found["lines"][-1]["level"] == "stderr"
    )
    assert {line["rank"] for line in found["lines"]} == {FAILED} and found["meshes"] == ["workers"] and found["whole"]
    logs = recorded.api().logs
    assert len(logs.printed(LogFilter())["lines"]) == 64, "a line of each while it is not known how many there are"
    logs._answers._answers.clear()
    assert len(logs.printed(LogFilter())["lines"]) == logs_data.LINES, "then as many of each as there is room for"
    assert texts(logs.last_lines("workers", FAILED, 2)) == [
        "    loss.backward()",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU has 1.12 GiB free",
    ]


def test_as_many_ranks_as_somebody_writes_are_not_counted_out(recorded: Any) -> None:
    """A list of them all would take 800 MB, and of 999,999,999 forty GB."""
    tracemalloc.start()
    try:
        found = recorded.api().logs.printed(LogFilter(ranks=ranks_of("0-20000000")))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert {line["rank"] for line in found["lines"]} == set(range(64))


def test_a_program_that_has_ended_prints_nothing(recorded: Any) -> None:
    logs = PageData(recorded.store, None, None).logs
    assert not logs.logged(LogFilter())["printed"] and logs.last_lines("workers", 0)["lines"] == []
    with pytest.raises(RuntimeError, match="what it prints is told by programs that run"):
        logs.printed(LogFilter())


def test_a_change_of_status_is_no_line_of_the_log(recorded: Any) -> None:
    store = Store()
    try:
        for name, text in (("event actor status", "idle"), ("event train.py:1", "hello")):
            store.insert("events", [(name, "x", "INFO", f'{{"message": "{text}"}}', 5, None, 0, "", None, None, None)])
        assert texts(PageData(store, recorded).logs.logged(LogFilter())) == ["hello"]
    finally:
        store.close()
