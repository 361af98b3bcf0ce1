"""Drawings of notebooks, of plain data."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from monarch import _html, _short_reprs
from monarch._errors import ActorError, DeadlockError, SupervisionError, UnhandledFaultError
from monarch._mesh.failures.ledger import MeshFailure
from monarch._runtime.future import done_future
from monarch._runtime.promise import Promise
from monarch._shape.extent import Extent
from monarch._shape.value_mesh import ValueMesh, dense
from monarch._short_reprs import SECONDS, texts_of
from monarch._wire.message import Failure
from tests.support.drawings import Drawing
from tests.support.hostile import NAME, fit
from tests.support.patience import TIMEOUT

ATTACK = "<script>alert(1)</script>\"' onmouseover=alert(1) </style><img src=x>"
LIMIT = 100_000  # bytes of any drawing


def drawn(sizes: dict[str, int], states: list[str], **more: Any) -> Drawing:
    ranks = more.pop("ranks", range(len(states)))
    return Drawing(_html.mesh(_html.DrawnMesh("ProcMesh", "trainers", sizes, ranks, states, **more)))


def test_a_mesh_is_a_grid_of_ranks_by_point() -> None:
    states = ["running", "dead", "restarted", "running", "stopped", "unknown"]
    mesh = drawn({"hosts": 2, "gpus": 3}, states, whys={1: "Killed(sig=9)"})
    assert [text for text, _ in mesh.squares] == ["0", "✕ 1", "↺ 2", "3", "■ 4", "? 5"]
    assert mesh.squares[1][1] == "rank 1 (hosts=0, gpus=1): dead, Killed(sig=9)"
    assert "2 running" in mesh.text and "1 dead" in mesh.text
    assert "✕ rank 1 dead: Killed(sig=9)" in mesh.text
    assert "hosts=1\n" in mesh.text and "gpus\n0\n1\n2\n" in mesh.text


def test_a_slice_has_the_numbers_that_reports_know() -> None:
    mesh = drawn({"gpus": 2}, ["running", "running"], ranks=[2, 3])
    assert mesh.squares == [("2", "rank 2 (gpus=0): running"), ("3", "rank 3 (gpus=1): running")]


@pytest.mark.parametrize(
    "sizes",
    [{}, {"gpus": 1}, {"gpus": 100}, {"a": 256, "b": 1}, {"a": 2, "b": 3, "c": 4}, {"a": 64, "b": 4}, {"a": 0}],
    ids=str,
)
def test_any_shape_has_all_its_ranks(sizes: dict[str, int]) -> None:
    count = math.prod(sizes.values())
    mesh = drawn(sizes, ["running"] * count)
    assert [text for text, _ in mesh.squares] == list(map(str, range(count)))


def test_many_ranks_share_squares_which_show_the_worst() -> None:
    states = ["running"] * 4096
    states[100], states[101], states[4095] = "dead", "restarted", "restarting"
    mesh = drawn({"hosts": 512, "gpus": 8}, states, whys={100: "Killed(sig=9)"})
    assert len(mesh.squares) == 256
    assert mesh.squares[6] == ("✕ 96", "ranks 96 to 111: 14 running, 1 restarted, 1 dead")
    assert mesh.squares[255][0] == "↻ 4080"
    assert "each square is 16 ranks and shows the worst of them" in mesh.text
    assert "✕ rank 100 dead: Killed(sig=9)" in mesh.text


@pytest.mark.parametrize(
    "label", [ATTACK, "'" * 500, "&" * 500, NAME], ids=["attack", "quotes", "ampersands", "control"]
)
@pytest.mark.parametrize("count", [1, 255, 256, 257, 4096, 100_000])
def test_no_drawing_is_large_or_does_anything(label: str, count: int) -> None:
    sizes = {f"{number}{label}": 1 for number in range(5)} | {label: count}
    whys = {rank: label * 20 + str(rank) for rank in range(min(count, 500))}
    facts = [(label, label * 100)] * 50
    states = ["dead"] * count
    of = _html.DrawnMesh(label, label * 10, sizes, range(count), states, whys, facts, label * 100)
    texts = [label * 50 + str(rank) for rank in range(min(count, 4096))]
    for each in (
        _html.mesh(of),
        _html.values(sizes, texts, label, label),
        _html.values({label: 100}, ["'" * 12] * 100),
        _html.future(label * 9, label * 99, (list(range(0, count, 2)), count), ""),
        _html.failure(label, label * 99, facts, label * 99, (label + "\n") * 5000, label),
        _html.waiting([label * 99] * 99),
        _html.waited(label * 99),
    ):
        drawing = Drawing(each)
        assert drawing.size < LIMIT
        assert fit(drawing.text)


# --- values


def values(sizes: dict[str, int], of: list[Any]) -> Drawing:
    return Drawing(dense(Extent(list(sizes), list(sizes.values())), of)._repr_html_())


def test_short_values_are_a_grid() -> None:
    shown = values({"hosts": 2, "gpus": 2}, [0.5, 1.5, 2.5, -1.0])
    assert shown.squares[2] == ("2.5", "hosts=1, gpus=0")
    assert "least -1 (rank 3), greatest 2.5 (rank 2), mean 0.875" in shown.text


def test_equal_values_share_a_row() -> None:
    shown = values({"gpus": 4}, ["the same " * 3, "the same " * 3, "another one", "the same " * 3])
    assert "0-1, 3\n" in shown.text and "3 ranks\n" in shown.text and "gpus=2\n" in shown.text
    assert shown.text.count("the same the same the same") == 1


def test_of_many_values_the_first_are_shown_and_the_others_counted() -> None:
    shown = values({"gpus": 4096}, [f"a value of rank {rank}" for rank in range(4096)])
    assert shown.size < LIMIT
    assert "a value of rank 49" in shown.text and "a value of rank 50" not in shown.text
    assert "and the values of 4,046 ranks more; .values() has all of them" in shown.text


def test_the_summary_is_of_numbers_only() -> None:
    assert (
        _html.summary([1, True]) == _html.summary([1]) == _html.summary(["1", 2]) == _html.summary([10**400, 1]) == ""
    )
    assert _html.summary([math.nan, 2, math.inf, 4.0]) == (
        "least 2 (rank 1), greatest 4 (rank 3), mean 3, not finite on rank(s) 0, 2"
    )
    assert _html.summary([7, 7.0]) == "all are 7"
    assert _html.summary([math.nan, math.nan]) == "not finite on rank(s) 0-1"


class Raises:
    dtype = "int64"

    @property
    def shape(self) -> tuple[int, ...]:
        raise RuntimeError("on purpose")


def test_a_value_whose_repr_raises_does_not_hide_the_others() -> None:
    shown = values({"gpus": 2}, [Raises(), ATTACK])
    assert "<Raises whose repr() raised RuntimeError>" in shown.text and "<script>" in shown.text


def test_values_whose_texts_take_long_are_left_out() -> None:
    times = iter([0.0, 0.1, SECONDS, SECONDS + 0.1])
    found: list[str] = []
    texts_of([1, 2, 3, 4], lambda: next(times), repr, found)
    assert found == ["1", "2"]


class Waits:
    def __init__(self) -> None:
        self.let, self.done = threading.Event(), threading.Event()

    def __repr__(self) -> str:
        self.let.wait(TIMEOUT)
        self.done.set()
        return "at last"


def test_a_value_whose_repr_does_not_return_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch._short_reprs.SECONDS", 0.01)
    waits = Waits()
    of = dense(Extent(["gpus"], [4]), [1, waits, 3, "x"])
    try:
        assert "3 values more: making the text of a value takes long here" in Drawing(of._repr_html_()).text
        assert "3 values more: the repr() of a value that was shown before" in Drawing(of._repr_html_()).text
        assert "3 values more: the repr() of a value" in in_ipython(of)
    finally:
        waits.let.set()
    assert waits.done.wait(TIMEOUT)
    assert _short_reprs._making.acquire(timeout=TIMEOUT)  # its thread is through
    _short_reprs._making.release()
    monkeypatch.undo()
    assert "at last" in Drawing(of._repr_html_()).text


class Odd(BaseException):
    pass


class RaisesAnything:
    def __repr__(self) -> str:
        raise Odd


def test_a_value_whose_repr_raises_anything_is_shown_all_the_same() -> None:
    of = dense(Extent(["gpus"], [2]), [RaisesAnything(), 7])
    assert "<RaisesAnything whose repr() raised Odd>" in Drawing(of._repr_html_()).text
    assert "{'gpus': 0/2}: <RaisesAnything whose repr() raised Odd>" in in_ipython(of)


def in_ipython(of: ValueMesh[Any]) -> str:
    printer: Any = type("Printer", (), {"text": lambda self, text: setattr(self, "shown", text)})()
    of._repr_pretty_(printer, False)
    return str(printer.shown)


def test_ipython_keeps_only_a_part_of_what_is_large() -> None:
    def printed(of: list[Any]) -> str:
        return in_ipython(dense(Extent(["gpus"], [len(of)]), of))

    small = dense(Extent(["gpus"], [2]), [list(range(100)), "b"])
    assert printed(small.values()) == repr(small)
    large = printed(["x" * 10_000_000, "b"])
    assert len(large) < 2_000 and "characters left out" in large and large.endswith("{'gpus': 1/2}: 'b'")
    many = printed(list(range(4096)))
    assert many.count("\n") == 65 and many.endswith("and 4,032 values more; .values() has all of them")


# --- futures and failures


def test_a_future() -> None:
    promise: Promise[object] = Promise()
    assert Drawing(promise.future._repr_html_()).text == "Future: pending\n"
    promise.set(3)
    assert Drawing(promise.future._repr_html_()).text == "Future: ready; .get() or await gives the result\n"
    promise.future.get()
    assert Drawing(promise.future._repr_html_()).text == "Future: done: int\n"


def test_what_a_future_gave_is_drawn_with_it() -> None:
    future = done_future(dense(Extent(["gpus"], [2]), [7, 8]))
    future.get()
    assert [text for text, _ in Drawing(future._repr_html_()).squares] == ["7", "8"]


def test_drawings_of_the_programs_own_classes_are_not_taken() -> None:
    class Own:
        def _repr_html_(self) -> str:
            return ATTACK

    future = done_future(Own())
    future.get()
    assert Drawing(future._repr_html_()).text == "Future: done: Own\n"


def test_an_error_of_an_endpoint() -> None:
    try:
        try:
            raise KeyError(ATTACK)
        except KeyError as exc:
            raise ValueError("on purpose") from exc
    except ValueError as exc:
        error = ActorError(exc, "Actor call talker.fail failed.")
    error.rank, error.point, error.host, error.raised, error.ranks = 1, {"gpus": 1}, "node3, pid 7", 2, 4
    text = Drawing(error._repr_html_()).text
    assert "Actor call talker.fail failed.\n" in text
    assert "rank: 1 (gpus=1)" in text and "host: node3, pid 7" in text and "raised: 2 of 4 ranks" in text
    assert "root cause: KeyError:" in text and "<script>" in text in text
    assert "remote traceback (" in text and "ValueError: on purpose" in text


@pytest.mark.parametrize("of", [SupervisionError, UnhandledFaultError, DeadlockError])
def test_a_report(of: type[Any]) -> None:
    text = Drawing(of(f"The actor {ATTACK} has failed:\n    Killed(sig=9)\n    rank 3")._repr_html_()).text
    assert text.startswith(f"✕ {of.__name__}: The actor {ATTACK} has failed:\n")
    assert "root cause: Killed(sig=9)\n" in text and "report (3 lines)" in text


def test_of_a_constructor_the_cause_is_what_it_raised() -> None:
    report = "The actor a has failed:\n    Bad.__init__ raised:\n    actor explicitly aborted due to: Traceback ...\n"
    text = Drawing(SupervisionError(f"{report}      File x\n    ValueError: no\n    room")._repr_html_()).text
    assert "root cause: Bad.__init__ raised: ValueError: no\n" in text


def test_a_failure_of_a_mesh() -> None:
    report = "The actor a has failed:\n    Killed(sig=9)"
    text = Drawing(MeshFailure(Failure(report, "key", "trainers-key", [0, 1, 3]))._repr_html_()).text
    assert "mesh: trainers-key" in text and "ranks: 0-1, 3" in text and "root cause: Killed(sig=9)" in text


def test_what_cannot_be_drawn_is_left_to_repr() -> None:
    def draw() -> str:
        raise RuntimeError("on purpose")

    assert _html.drawn(draw) is None
