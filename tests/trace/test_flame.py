"""Flame graphs: what is drawn of which stacks."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from monarch._mesh.inspection.sampler import Samples
from monarch._mesh.inspection.survey_answers import SurveyAnswers
from monarch.trace.flame import Flame, boxes
from monarch.trace.sampling import flame_of

_SVG = "{http://www.w3.org/2000/svg}"


def _titles(flame: Flame) -> list[str]:
    return [str(title.text) for title in ET.fromstring(flame.svg()).iter(f"{_SVG}title")]


def test_a_box_says_in_how_many_processes_it_was_seen() -> None:
    ranks = {f"rank {rank}": {"trainers;step (t.py:8)": 10} for rank in range(7)}
    ranks["rank 7"] = {"trainers;step (t.py:8);load (data.py:31)": 10}
    titles = _titles(Flame(ranks))
    assert "step (t.py:8): 80 stacks (100.0%), 70 of them here, in 8 of 8 processes" in titles
    assert "load (data.py:31): 10 stacks (12.5%), in 1 of 8 processes (rank 7)" in titles


def test_boxes_lie_within_those_of_their_callers() -> None:
    flame = Flame({"a": {"x;y;z": 3, "x;q": 1}, "b": {"x;y": 4}})
    placed = {node.name: (depth, left, left + wide) for node, depth, left, wide in boxes(flame.tree(), 800.0)}
    assert placed["all"] == (0, 0.0, 800.0)
    assert placed["y"][2] - placed["y"][1] == 700.0
    assert placed["y"][1] <= placed["z"][1] and placed["z"][2] <= placed["y"][2]


def test_an_idle_mesh_is_an_empty_picture_that_says_so() -> None:
    text = Flame({"a": {}}, silent={"b": "it did not answer within 2 s"}).svg()
    assert "every actor waited for a message" in text
    assert "no answer from b: it did not answer within 2 s" in text


def test_names_of_users_cannot_break_the_file() -> None:
    flame = Flame({"a": {'<lambda> & "x" (<stdin>:1)': 1}}, title="<b>")
    assert any('<lambda> & "x"' in title for title in _titles(flame))


@pytest.mark.parametrize("odd", ["a\0b", "\x1b[2J", "\udce9", "\r", "\ufffe", "]]></script><script>alert(1)</script>"])
def test_no_character_of_a_name_spoils_the_file(odd: str, tmp_path: Path) -> None:
    flame = Flame({f"p{odd}": {f"{odd};in": 3}}, silent={odd: odd}, title=odd, notes=odd)
    root = ET.fromstring(flame.write(tmp_path / "f.svg").read_text())
    assert len(list(root.iter(f"{_SVG}script"))) == 1
    assert flame.write(tmp_path / "f.txt").read_text().endswith(" 3\n")


def test_stacks_that_were_never_seen_have_no_share() -> None:
    assert Flame({"a": {"x": 0}}).hottest() == [("x", 0.0, ["a"])]


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        ({";".join("x" * 5_000): 1}, "no process gives"),
        ({"x": -1}, "no process gives"),
        ({"x" * (70 << 20): 1}, "bytes, more than"),
        ({str(number): 1 for number in range(30_000)}, "30,000 stacks"),
    ],
    ids=["too deep", "less than none", "too large", "too many"],
)
def test_an_answer_that_no_process_gives_costs_no_other(samples: dict[str, int], why: str) -> None:
    replies = {"h/a.0": Samples(samples, 1), "h/b.0": Samples({"x;y": 2}, 1)}
    flame = flame_of(SurveyAnswers({name: msgspec.msgpack.encode(made) for name, made in replies.items()}, {}), 1.0)
    assert list(flame.processes.values()) == [{"x;y": 2}]
    assert why in flame.silent["a.0"]


def test_what_is_written_follows_the_name_of_the_file(tmp_path: Path) -> None:
    flame = Flame({"a": {"x;y": 2}, "b": {"x;y": 1, "x": 4}})
    assert flame.write(tmp_path / "f.txt").read_text() == "x 4\nx;y 3\n"
    scope = json.loads(flame.write(tmp_path / "f.json").read_text())
    assert [profile["name"] for profile in scope["profiles"]] == ["a", "b"]
    assert scope["profiles"][1]["samples"] == [[0, 1], [0]]
    assert scope["profiles"][1]["weights"] == [1, 4]
    assert [frame["name"] for frame in scope["shared"]["frames"]] == ["x", "y"]
    ET.fromstring(flame.write(tmp_path / "f.svg").read_text())


def test_the_hottest_are_the_innermost_that_were_seen_most() -> None:
    flame = Flame({"a": {"x;y": 2, "x": 1}, "b": {"x;y": 1}})
    assert flame.hottest() == [("y", 0.75, ["a", "b"]), ("x", 0.25, ["a"])]


def test_of_too_many_boxes_the_widest_are_drawn() -> None:
    flame = Flame({"a": {f"f{number};g": 1 for number in range(3000)}})
    assert len(_titles(flame)) <= 20_000
