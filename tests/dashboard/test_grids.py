"""Meshes as grids of letters."""

from __future__ import annotations

import json
from typing import Any

import pytest

from monarch.dashboard.pages import grids


def shape(*dims: tuple[str, int]) -> str:
    return json.dumps({"inner": {"labels": [label for label, _ in dims], "sizes": [size for _, size in dims]}})


def view(offset: int, sizes: list[int], strides: list[int]) -> str:
    labels = [f"d{number}" for number in range(len(sizes))]
    return json.dumps({"labels": labels, "slice": {"offset": offset, "sizes": sizes, "strides": strides}})


def mesh(
    number: int, kind: str, shape_json: str | None, parent: int | None = None, over: str | None = None
) -> dict[str, Any]:
    return {
        "id": number,
        "timestamp_us": number,
        "class": kind,
        "given_name": f"m{number}",
        "full_name": f"m{number}-u",
        "shape_json": shape_json,
        "parent_mesh_id": parent,
        "parent_view_json": over,
    }


def actor(number: int, mesh_id: int, rank: int, status: str | None = "idle", system: bool = False) -> dict[str, Any]:
    return {"id": number, "mesh_id": mesh_id, "rank": rank, "latest_status": status, "is_system": system}


@pytest.mark.parametrize("text", [None, "", "no json", "[]", '{"labels": ["a"], "sizes": []}', shape(("a", 0))])
def test_a_shape_that_cannot_be_read_is_none(text: str | None) -> None:
    assert grids.extent(text) == ([], [])


def test_both_forms_of_a_shape() -> None:
    assert grids.extent(shape(("hosts", 2), ("gpus", 4))) == (["hosts", "gpus"], [2, 4])
    assert grids.extent(view(0, [2, 4], [4, 1])) == (["d0", "d1"], [2, 4])


@pytest.mark.parametrize(
    ("text", "ranks", "found"),
    [
        (None, 3, [0, 1, 2]),
        (view(0, [2], [4]), 2, [0, 4]),
        (view(1, [2, 2], [4, 1]), 4, [1, 2, 5, 6]),
        (view(5, [], []), 1, [5]),
    ],
)
def test_ranks_of_a_view(text: str | None, ranks: int, found: list[int]) -> None:
    assert grids.parent_ranks(text, ranks) == found


def test_a_view_that_claims_too_much_is_cut() -> None:
    assert len(grids.parent_ranks(view(0, [1000, 1000], [1000, 1]), 4)) <= grids.MOST_RANKS


def test_a_process_looks_like_the_worst_that_lives_in_it() -> None:
    meshes = [
        mesh(1, "Proc", shape(("hosts", 2), ("gpus", 2))),
        mesh(2, "Python<A>", shape(("hosts", 2), ("gpus", 2)), 1),
        mesh(3, "Python<B>", shape(("hosts", 2)), 1, view(1, [2], [2])),
    ]
    actors = [actor(10 + rank, 2, rank) for rank in range(4)]
    actors += [actor(20, 3, 0, "failed"), actor(21, 3, 1, "stopped")]
    running = [{"actor_id": 12, "endpoint": "step", "active_us": 40}]
    made = {grid["name"]: grid for grid in grids.grids(meshes, actors, running, 100)}
    assert made["m2"]["cells"] == "iipi"
    assert made["m1"]["cells"] == "ifpi"
    assert made["m1"]["running"] == made["m2"]["running"] == [[2, 60, "step"]]
    assert made["m3"]["counts"] == {"failed": 1, "stopped": 1}
    assert [grid["name"] for grid in grids.grids(meshes, actors, [], 0)] == ["m1", "m2", "m3"]


def test_ranks_of_which_nothing_is_known_are_absent() -> None:
    made = grids.grids([mesh(2, "Python<A>", shape(("gpus", 3)))], [actor(1, 2, 1, None)], [], 0)
    assert made[0]["cells"] == ".u."


def test_ranks_out_of_range_and_the_system_are_left_out() -> None:
    meshes = [mesh(2, "Python<A>", shape(("gpus", 2))), mesh(3, "Python<S>", shape(("gpus", 1)))]
    actors = [actor(1, 2, 0), actor(2, 2, 9), actor(3, 3, 0, system=True)]
    assert [grid["cells"] for grid in grids.grids(meshes, actors, [], 0)] == ["i."]
    assert len(grids.grids(meshes, actors, [], 0, show_system=True)) == 2


def test_a_mesh_without_a_shape_has_the_ranks_it_was_seen_with() -> None:
    made = grids.grids([mesh(2, "Python<A>", None)], [actor(1, 2, 0), actor(2, 2, 2)], [], 0)
    assert (made[0]["cells"], made[0]["labels"], made[0]["sizes"]) == ("i.i", ["rank"], [3])
