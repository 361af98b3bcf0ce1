"""The model of docs/scale.md: its constants can be found, and what the page says of clusters follows from those it shows."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from monarch._mesh.casts.relay_state import split

ROOT = Path(__file__).resolve().parents[2]
LATENCY = 100e-6


def module_of(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model() -> ModuleType:
    return module_of("_scale_model")


def test_the_picture_of_the_page_draws_all_that_its_tables_say() -> None:
    drawn = module_of("_scale_plot").panels((ROOT / "docs" / "scale.md").read_text())
    curves = {(panel.title, curve.label): curve.points for panel in drawn for curve in panel.curves}
    assert len(curves) == 17 and all(len(points) >= 2 for points in curves.values())
    assert curves["a call", "... all on one host"][-1] == (1024, 122)
    assert curves["messages at the client's agent, simulated", "attach"][-1] == (10_000, 50_000)


def cells(header: str) -> list[list[str]]:
    """The rows of the table of the page with that header."""
    lines = (ROOT / "docs" / "scale.md").read_text().splitlines()
    start = lines.index(header) + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_constants_are_found(model: ModuleType) -> None:
    terms = model.WORK["call_workers"]
    points = [model.counts(hosts, per_host) for hosts in (1, 4, 16, 64) for per_host in (1, 4)]
    values = [3e-5 * point["hosts"] + 5e-6 * point["procs"] for point in points]
    found = model.fit(points, values, terms)
    assert found.constants == pytest.approx({"a host": 3e-5, "a receiver": 5e-6}) and found.error < 1e-9


def test_no_constant_is_negative(model: ModuleType) -> None:
    terms = model.WORK["call_workers"]
    points = [model.counts(hosts, per_host) for hosts in (1, 4, 16) for per_host in (1, 4)]
    values = [1e-4 * point["procs"] - 5e-5 * point["hosts"] for point in points]
    assert min(model.fit(points, values, terms).constants.values()) == 0


def longest_way(count: int, width: int) -> int:
    """Returns how many agents a cast passes on its longest way from the root to one of `count` other hosts."""
    levels = 0
    while count:
        count = len(split(count, width)[0]) - 1
        levels += 1
    return levels


@pytest.mark.parametrize("hosts", [1, 15, 16, 17, 64, 273, 1000, 10_000])
def test_the_model_has_the_levels_of_the_tree(model: ModuleType, hosts: int) -> None:
    levels = model.Cluster({}, LATENCY).levels(hosts)
    assert len(levels) == longest_way(hosts, model.WIDTH) and max(levels) <= model.WIDTH


def test_what_the_page_says_of_clusters_follows_from_its_constants(model: ModuleType) -> None:
    made = {}
    for kind, constants, _error in cells("| work | constants, µs | median error |"):
        named = {name: float(value) * 1e-6 for value, name in re.findall(r"([\d.e+-]+) (an? \w+)", constants)}
        made[kind.replace(", ", "_")] = model.Fit(named, 0.0)
    assert set(made) == set(model.WORK)
    cluster = model.Cluster(made, LATENCY)
    rows = cells("| hosts | procs | levels | one cast, ms | casts/s | call, ms |")
    assert rows
    for row in rows:
        hosts, procs, levels, cast, casts, call = (float(cell.replace(",", "")) for cell in row)
        per_host = int(procs / hosts)
        assert len(cluster.levels(int(hosts))) == levels
        shown = [
            cluster.cast(int(hosts), per_host),
            1 / cluster.casts(int(hosts), per_host),
            cluster.call(int(hosts), per_host),
        ]
        assert shown == pytest.approx([cast * 1e-3, casts, call * 1e-3], rel=0.02)
