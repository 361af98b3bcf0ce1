"""Meshes as grids: one letter a rank, so that thousands of ranks are a short text. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from monarch.admin.rank_states import ABSENT, LETTERS, STATES, worse

Row = Mapping[str, Any]

MOST_RANKS = 65_536  # of one mesh
MOST_AGES = 4_096  # ranks whose age is told; the oldest


def extent(shape_json: str | None) -> tuple[list[str], list[int]]:
    """Labels and sizes of a mesh's shape; ([], []) for one rank, and for what cannot be read."""
    try:
        shape = json.loads(shape_json or "{}")
        shape = shape.get("inner", shape)
        sizes = shape["sizes"] if "sizes" in shape else shape["slice"]["sizes"]
        labels, sizes = [str(label) for label in shape["labels"]], [int(size) for size in sizes]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [], []
    return (labels, sizes) if len(labels) == len(sizes) and all(size > 0 for size in sizes) else ([], [])


def ranks_of(sizes: Sequence[int]) -> int:
    number = 1
    for size in sizes:
        number *= size
    return number


def parent_ranks(parent_view_json: str | None, ranks: int) -> list[int]:
    """The parent's rank behind each rank of a view of it; the same ranks where there is no view."""
    try:
        view = json.loads(parent_view_json or "null")
        inner = view["slice"]
        offset, sizes, strides = int(inner["offset"]), list(map(int, inner["sizes"])), list(map(int, inner["strides"]))
    except (ValueError, KeyError, TypeError):
        return list(range(ranks))
    found = [offset]
    for size, stride in zip(sizes, strides, strict=False):
        if len(found) * size > MOST_RANKS:
            break
        found = [base + step * stride for base in found for step in range(size)]
    return found


def grids(
    meshes: Sequence[Row], actors: Iterable[Row], running: Iterable[Row], now_us: int, show_system: bool = False
) -> list[dict[str, Any]]:
    """GET /api/topology: each mesh with a letter a rank, and how long endpoints have been running there.

    Meshes of actors get the states of their actors; a mesh of processes the worst state of all that lives in each.
    """
    oldest: dict[int, tuple[int, str | None]] = {}
    for row in running:
        oldest.setdefault(row["actor_id"], (now_us - row["active_us"], row["endpoint"]))
    by_mesh: dict[int, list[Row]] = {}
    for row in actors:
        if row["mesh_id"] is not None and (show_system or not row["is_system"]):
            by_mesh.setdefault(row["mesh_id"], []).append(row)
    known = {mesh["id"]: mesh for mesh in meshes}
    cells: dict[int, list[str]] = {}
    ages: dict[int, dict[int, tuple[int, str | None]]] = {}
    for mesh in meshes:
        members = by_mesh.get(mesh["id"], ())
        size = _size(mesh, members)
        letters, old = [ABSENT] * size, {}
        for row in members:
            rank = row["rank"]
            if rank is None or not 0 <= rank < size:
                continue
            letters[rank] = LETTERS.get(row["latest_status"] or "unknown", "u")
            if row["id"] in oldest:
                old[rank] = oldest[row["id"]]
                if letters[rank] in "ic":
                    letters[rank] = "p"
        cells[mesh["id"]], ages[mesh["id"]] = letters, old
    for mesh in meshes:  # what lives in the processes shows in their mesh
        parent = known.get(mesh["parent_mesh_id"])
        if parent is None or parent["class"] != "Proc" or mesh["class"] in ("Host", "Proc"):
            continue
        above, old = cells[parent["id"]], ages[parent["id"]]
        for rank, target in enumerate(parent_ranks(mesh["parent_view_json"], len(cells[mesh["id"]]))):
            if rank >= len(cells[mesh["id"]]) or not 0 <= target < len(above):
                continue
            above[target] = worse(above[target], cells[mesh["id"]][rank])
            if rank in ages[mesh["id"]]:
                old[target] = max(old.get(target, (0, None)), ages[mesh["id"]][rank], key=lambda item: item[0])
    shown = [mesh for mesh in meshes if _shown(mesh, cells[mesh["id"]])]
    shown.sort(key=lambda mesh: _place(mesh, known, cells))
    return [_grid(mesh, cells[mesh["id"]], ages[mesh["id"]]) for mesh in shown]


def _place(mesh: Row, known: Mapping[int, Row], cells: Mapping[int, list[str]]) -> tuple[Any, ...]:
    """Largest meshes of processes first, each before the actors in it."""
    home = mesh if mesh["class"] == "Proc" else known.get(mesh["parent_mesh_id"], mesh)
    size = len(cells.get(home["id"], ()))
    return (-size, home["timestamp_us"], home["id"], mesh["class"] != "Proc", mesh["timestamp_us"], mesh["given_name"])


def _size(mesh: Row, members: Sequence[Row]) -> int:
    sizes = extent(mesh["shape_json"])[1]
    known = ranks_of(sizes) if sizes else 1 + max((row["rank"] or 0 for row in members), default=0)
    return min(known, MOST_RANKS)


def _shown(mesh: Row, letters: list[str]) -> bool:
    return mesh["class"] != "Host" and any(letter != ABSENT for letter in letters)


def _grid(mesh: Row, letters: list[str], old: dict[int, tuple[int, str | None]]) -> dict[str, Any]:
    labels, sizes = extent(mesh["shape_json"])
    if not sizes or ranks_of(sizes) != len(letters):
        labels, sizes = ["rank"], [len(letters)]
    oldest = sorted(old.items(), key=lambda item: -item[1][0])[:MOST_AGES]
    counts: dict[str, int] = {}
    for letter in letters:
        state = STATES.get(letter, "absent")
        counts[state] = counts.get(state, 0) + 1
    return {
        "id": str(mesh["id"]),
        "name": mesh["given_name"],
        "full_name": mesh["full_name"],
        "class": mesh["class"],
        "parent_mesh_id": None if mesh["parent_mesh_id"] is None else str(mesh["parent_mesh_id"]),
        "labels": labels,
        "sizes": sizes,
        "cells": "".join(letters),
        "counts": counts,
        "running": [[rank, age, endpoint] for rank, (age, endpoint) in oldest],
    }
