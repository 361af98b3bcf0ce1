"""Stacks folded over ranks."""

from __future__ import annotations

from monarch.dashboard.pages import icicle
from monarch.dashboard.pages.icicle import RankStack

STEP = ("step", "train.py", 88)
WAIT = ("all_reduce", "dist.py", 5)
READ = ("read", "data.py", 31)


def ranks(count: int, odd: int | None = None) -> list[RankStack]:
    return [RankStack(f"t {rank}", "t", [STEP, READ if rank == odd else WAIT]) for rank in range(count)]


def test_nobody() -> None:
    assert icicle.fold([])["count"] == 0


def test_equal_stacks_are_one() -> None:
    made = icicle.fold(ranks(64))
    (group,) = made["children"]
    (step,) = group["children"]
    assert (group["name"], step["name"], step["count"]) == ("t", "step", 64)
    assert step["ranks"] == [*(f"t {rank}" for rank in range(8)), "and 56 more"]
    assert not step["straggler"]


def test_the_one_elsewhere_is_marked() -> None:
    step = icicle.fold(ranks(64, odd=17))["children"][0]["children"][0]
    many, one = step["children"]
    assert (many["count"], many["straggler"]) == (63, False)
    assert (one["name"], one["ranks"], one["straggler"]) == ("read", ["t 17"], True)


def test_a_small_mesh_beside_a_large_one_is_not_a_straggler() -> None:
    made = icicle.fold([*ranks(64), RankStack("c 0", "c", [("main", "x.py", 1)])])
    assert [child["straggler"] for child in made["children"]] == [False, False]


def test_two_ranks_have_no_straggler() -> None:
    step = icicle.fold(ranks(2, odd=1))["children"][0]["children"][0]
    assert [child["straggler"] for child in step["children"]] == [False, False]


def test_it_is_bounded() -> None:
    many = [
        RankStack(f"t {rank}", "t", [("f", "x.py", rank * 1000 + depth) for depth in range(500)]) for rank in range(50)
    ]
    made = icicle.fold(many)

    def size(node: dict[str, object]) -> int:
        return 1 + sum(size(child) for child in node["children"])  # type: ignore[attr-defined]

    assert made["cut"]
    assert size(made) <= icicle.MOST_NODES
    assert made["count"] == 50
