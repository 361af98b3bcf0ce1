"""Tests of what a function reads of what is around it, from its code."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.tensor.recording.reads import WHOLE, Node, ReadKey, merged, reads_of

LIMITS: dict[str, Any] = {"top": 1}


def shown(node: Node) -> Any:
    """A node without what nothing hangs in."""
    return {key.value if type(key) is ReadKey else key: shown(inner) for key, inner in node.items() if key is not WHOLE}


def chain(self: Any) -> Any:
    return self.model.scale * LIMITS["top"]


def assigned(self: Any) -> Any:
    model = self.model
    return model.scale


def argument_assigned(self: Any) -> Any:
    self = self.inner
    return self.scale


def asked(self: Any) -> Any:
    return self.table.get("scale", 1), "other" in self.__dict__


def inside(self: Any) -> Any:
    return [item * self.scale for item in self.items]


def by_name(self: Any) -> Any:
    return getattr(self, "scale")  # noqa: B009  # as programs do


@pytest.mark.parametrize(
    ("function", "arguments", "loose"),
    [
        (chain, {"self": {"model": {"scale": {}}}}, set()),
        (assigned, {"self": {"model": {}}}, {"scale"}),
        (argument_assigned, {}, {"inner", "scale"}),
        (asked, {"self": {"table": {"scale": {}}, "__dict__": {"other": {}}}}, set()),
        (inside, {"self": {"scale": {}, "items": {}}}, set()),
        (by_name, {"self": {}}, {"scale"}),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_attributes(function: Any, arguments: Any, loose: set[str]) -> None:
    found = reads_of(function.__code__)
    assert {name: shown(node) for name, node in found.arguments.items()} == arguments
    assert found.loose >= loose
    assert not loose or found.loose <= loose | {"getattr"}


def test_globals_and_free_variables() -> None:
    config: Any = None
    found = reads_of((lambda x: x * config.scale * LIMITS["top"]).__code__)
    assert shown(found.free["config"]) == {"scale": {}}
    assert shown(found.globals["LIMITS"]) == {"top": {}}


def test_a_value_that_is_used_itself() -> None:
    config: Any = None
    found = reads_of((lambda: config.values()).__code__)  # noqa: PLW0108  # as programs do
    assert shown(found.free["config"]) == {"values": {}}
    assert WHOLE in reads_of((lambda: sum(config)).__code__).free["config"]


def test_keys_are_told_apart_by_type() -> None:
    assert ReadKey(1) != ReadKey(True)
    assert len({ReadKey(1), ReadKey(1), ReadKey("1")}) == 2


def test_merging() -> None:
    assert merged({"a": {"b": {}}}, {"a": {"c": {}}, "d": {}}) == {"a": {"b": {}, "c": {}}, "d": {}}
