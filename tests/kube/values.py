"""Helpers of several tests of Kubernetes: a clock, the Role of the examples, ways through objects."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import yaml

from tests.support.hosts import ROOT

EXAMPLES = ROOT / "examples" / "kubernetes"


class Clock:
    """The time of jobs, which passes while they wait."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


def allowed() -> set[tuple[str, str, str]]:
    """(group, resource, verb) of each thing the Role allows."""
    role = next(item for item in yaml.safe_load_all((EXAMPLES / "rbac.yaml").read_text()) if item["kind"] == "Role")
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Returns the way to everything in an object."""
    if way:
        yield way
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*way, key))


def with_(body: Any, way: tuple[Any, ...], value: Any) -> Any:
    changed = at = copy.deepcopy(body)
    for key in way[:-1]:
        at = at[key]
    at[way[-1]] = value
    return changed
