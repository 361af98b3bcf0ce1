"""Tests of what RayJob takes, without Ray."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.job import SchedulerError
from monarch.job.ray.job import RayJob, _amounts, _options


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"meshes": {}}, "one mesh or more"),
        ({"meshes": {"a": 0}}, "one host or more"),
        ({"meshes": {"a b": 1}}, "not a name of a mesh"),
        ({"meshes": {"a": 1}, "strategy": "STRICT"}, "STRICT_SPREAD, SPREAD, PACK, STRICT_PACK, got 'STRICT'"),
        ({"meshes": {"a": 1}, "resources": {}}, "reserves something"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RayJob(**arguments)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RuntimeError, match=r"pip install 'pymonarch\[ray\]'"):
        RayJob({"trainers": 1}).apply()


def test_there_is_no_batch_mode() -> None:
    with pytest.raises(RuntimeError, match="RayJob cannot run batch-mode scripts"):
        RayJob({"trainers": 1}).apply("train.py")


def test_resources_are_named_as_ray_does() -> None:
    assert _options({"CPU": 2, "GPU": 1, "memory": 5, "tpu": 4}) == {
        "num_cpus": 2,
        "num_gpus": 1,
        "memory": 5,
        "resources": {"tpu": 4},
    }
    assert _options({"GPU": 1}) == {"num_cpus": 0, "num_gpus": 1, "memory": None, "resources": None}
    assert _amounts({"CPU": 2.0, "node:10.0.0.1": 1.0, "CPU_group_1_ab": 1.0}) == "CPU 2"
    assert _amounts({}) == "nothing"


def test_jobs_are_the_same_when_all_that_was_asked_is() -> None:
    job = RayJob({"a": 1, "b": 2}, {"CPU": 2})
    assert job._same(RayJob({"a": 1, "b": 2}, {"CPU": 2}))
    assert not job._same(RayJob({"b": 2, "a": 1}, {"CPU": 2}))
    assert not job._same(RayJob({"a": 1, "b": 2}, {"CPU": 2}, strategy="PACK"))
    assert not job._same(RayJob({"a": 1, "b": 2}))


class RayError(Exception):
    """The class of Ray's own errors, such as that a token is missing."""


@pytest.mark.parametrize("kind", [ConnectionError, RayError])
def test_a_cluster_that_is_not_there(monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
    def init(**options: Any) -> None:
        assert options["address"] == "auto"
        raise kind("Could not find\nany running Ray instance")

    exceptions = SimpleNamespace(RayError=RayError)
    monkeypatch.setitem(
        sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init, exceptions=exceptions)
    )
    said = r"the Ray cluster auto cannot be reached: any running Ray instance \(one with RAY_AUTH_MODE=token wants its token"
    with pytest.raises(SchedulerError, match=said):
        RayJob({"trainers": 1}, address="auto").apply()
    with pytest.raises(SchedulerError, match=r"the Ray cluster 127.0.0.1:1 cannot be reached: .*Connection refused"):
        RayJob({"trainers": 1}, address="127.0.0.1:1").apply()
