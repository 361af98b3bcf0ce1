"""Tests of what pods say of themselves."""

from __future__ import annotations

import math
from typing import Any

import pytest

from monarch.job.kubernetes.pods import (
    FIXABLE,
    MeshPods,
    Obstacle,
    Patience,
    look,
    obstacle_of,
    port_of,
    rank_of,
    secret_of,
)

READY = {"phase": "Running", "podIP": "10.0.0.7", "conditions": [{"type": "Ready", "status": "True"}]}


def pod(rank: Any = 0, status: Any = READY, made: int = 0, **metadata: Any) -> dict[str, Any]:
    labels = {} if rank is None else {"apps.kubernetes.io/pod-index": str(rank)}
    kept = {"name": f"trainers-{rank}", "labels": labels, "creationTimestamp": f"2026-01-01T00:00:{made:02}Z"}
    return {"metadata": kept | metadata, "spec": {"containers": [{"name": "worker"}]}, "status": status}


def waiting(reason: str, message: str = "", **container: Any) -> dict[str, Any]:
    state = {"name": "worker", "state": {"waiting": {"reason": reason, "message": message}}}
    return {"phase": "Pending", "containerStatuses": [state | container]}


def test_a_mesh_is_there_when_every_rank_is() -> None:
    two = {"phase": "Running", "podIP": "fd00::7", "conditions": [{"type": "Ready", "status": "True"}]}
    found = look("trainers", 2, [pod(1, two), pod(0)])
    assert found.missing == []
    assert found.workers == ["tcp://10.0.0.7:26600", "tcp://[fd00::7]:26600"]
    assert found.why() == "trainers: all 2 pods are ready"
    assert look("trainers", 1, [pod(0)], scheme="tls").workers == ["tls://10.0.0.7:26600"]


def test_the_newest_pod_of_a_rank_counts() -> None:
    gone = pod(0, made=1, deletionTimestamp="2026-01-01T00:01:00Z")
    assert look("trainers", 1, [pod(0, made=2), gone]).missing == []
    assert look("trainers", 1, [gone]).why().endswith("missing ranks: [0]; pod trainers-0: is being deleted")
    assert look("trainers", 1, [pod(0, made=1), pod(0, waiting("ContainerCreating"), made=2)]).missing == [0]


def test_pods_without_a_rank_here_are_skipped_with_a_reason() -> None:
    found = look("trainers", 2, [pod(None), pod(2), pod("x", name="other")])
    assert found.missing == [0, 1]
    assert "it has 2 as rank" in found.skipped["trainers-2"]
    assert "it has no rank" in found.skipped["trainers-None"] and "it has no rank" in found.skipped["other"]


def test_pods_of_another_job_are_not_counted() -> None:
    assert look("trainers", 1, [pod(0)], ours=lambda pod: False) == MeshPods("trainers", 1, {}, {})


def test_the_rank_is_in_a_label_and_with_old_clusters_in_the_name() -> None:
    owner = [{"kind": "StatefulSet", "controller": True}]
    assert rank_of(pod(3)) == 3
    assert rank_of(pod(None, name="trainers-11", ownerReferences=owner)) == 11
    assert rank_of(pod(None, name="trainers-11")) is None
    assert rank_of(pod(3, labels={"volcano.sh/task-index": "5"}), "volcano.sh/task-index") == 5
    assert rank_of(pod(3), "volcano.sh/task-index") is None


def test_port_and_secret_are_those_of_its_worker() -> None:
    source = {"valueFrom": {"secretKeyRef": {"name": "shared", "key": "word"}}}
    told = pod(0)
    assert (port_of(told), secret_of(told)) == (26600, None)
    told["spec"]["containers"][0]["env"] = [
        {"name": "MONARCH_PORT", "value": "4444"},
        {"name": "MONARCH_SECRET", **source},
    ]
    assert (port_of(told), secret_of(told)) == (4444, ("shared", "word"))


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available:\n3 Insufficient nvidia.com/gpu.",
        }
    ],
}
CRASHED = waiting("CrashLoopBackOff", lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}})


@pytest.mark.parametrize(
    ("status", "why", "patience"),
    [
        ({}, "Unknown", math.inf),
        ({"phase": "Pending"}, "Pending", math.inf),
        (UNSCHEDULABLE, "Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", math.inf),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "Evicted: low on memory", math.inf),
        ({**READY, "podIP": ""}, "has no address yet", math.inf),
        (waiting("ContainerCreating"), "Pending", math.inf),
        (waiting("ImagePullBackOff", "Back-off", image="x:1"), "ImagePullBackOff: image 'x:1': Back-off", FIXABLE),
        (waiting("InvalidImageName", "bad", image="X"), "InvalidImageName: image 'X': bad", 0.0),
        (waiting("CreateContainerConfigError", "no secret"), "CreateContainerConfigError: no secret", FIXABLE),
        (CRASHED, "CrashLoopBackOff: OOMKilled, exit code 137", FIXABLE),
    ],
)
def test_a_pod_that_is_not_ready_says_why(status: Any, why: str, patience: float) -> None:
    found = obstacle_of(pod(0, status))
    assert found is not None
    assert (found.why, found.patience) == (why, patience)


def test_equal_reasons_are_said_once_and_many_are_cut() -> None:
    why = look("trainers", 12, [pod(rank, UNSCHEDULABLE) for rank in range(12)]).why()
    assert why.startswith("trainers: 0/12 pods are ready, missing ranks: [0, 1, 2, 3, 4, 5, 6, 7, ... 4 more]")
    assert why.count("Insufficient") == 1 and "pod trainers-0 and 11 more" in why


def pods(**obstacles: Obstacle) -> MeshPods:
    return MeshPods("trainers", 2, {}, obstacles)


def test_patience_ends_when_an_obstacle_has_lasted() -> None:
    patience, pending = Patience(), Obstacle("Pending")
    pulling, backing_off = Obstacle("ErrImagePull", FIXABLE), Obstacle("ImagePullBackOff", FIXABLE)
    for now in range(0, int(FIXABLE), 30):
        assert patience.ended(pods(a=pulling if now % 60 else backing_off, b=pending), float(now)) is None
    assert patience.ended(pods(a=backing_off, b=pending), FIXABLE) == ("a", backing_off)


def test_what_cannot_come_right_ends_at_once() -> None:
    wrong = Obstacle("InvalidImageName", 0.0)
    assert Patience().ended(pods(a=wrong), 2000.0) == ("a", wrong)


def test_a_crash_between_two_starts_is_the_same_crash() -> None:
    patience, crash = Patience(), Obstacle("CrashLoopBackOff", FIXABLE)
    for now in range(0, int(FIXABLE), 20):
        assert patience.ended(pods(a=crash), float(now)) is None
        assert patience.ended(pods(), now + 10.0) is None  # it is up for a moment
    assert patience.ended(pods(a=crash), FIXABLE) == ("a", crash)


def test_what_was_put_right_begins_anew() -> None:
    patience, crash = Patience(), Obstacle("CrashLoopBackOff", FIXABLE)
    assert patience.ended(pods(a=crash), 0.0) is None
    assert patience.ended(pods(), Patience.RECOVERED) is None
    assert patience.ended(pods(a=crash), FIXABLE) is None
