"""The state that pods tell: which rank, where, whether they are ready, and if not, why. Pure: the API's dicts in.

A pod that is not ready has an `Obstacle`. Most pass by themselves (no node is free, the image is being pulled); some never
do unless somebody acts: these have a `patience`, and when one has been there for that long, waiting ends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from monarch.job.kubernetes.manifests import (
    DEFAULT_PORT,
    JOB_VARIABLE,
    POD_INDEX,
    PORT_VARIABLE,
    SECRET_KEY,
)
from monarch.job.worker_launch import SECRET as SECRET_VARIABLE

Pod = Mapping[str, Any]

# Reasons of a container that waits, by how long it may take until somebody has put it right, in seconds.
FIXABLE = 120.0
HOPELESS = {
    "ErrImagePull": FIXABLE,
    "ImagePullBackOff": FIXABLE,
    "RegistryUnavailable": FIXABLE,
    "CreateContainerConfigError": FIXABLE,
    "CreateContainerError": FIXABLE,
    "RunContainerError": FIXABLE,
    "CrashLoopBackOff": FIXABLE,
    "InvalidImageName": 0.0,
    "ErrImageNeverPull": 0.0,
}
_ORDINARY = ("ContainerCreating", "PodInitializing", "")
_NUMBER = re.compile(r"[0-9]{1,9}\Z")
_MOST_SHOWN = 3  # different reasons in one line


@dataclass(frozen=True)
class Obstacle:
    """A reason why a pod is not ready. `patience`: seconds it may last; infinite for what passes by itself. `crashed`: the
    container that has written why."""

    why: str
    patience: float = math.inf
    crashed: str = ""


@dataclass(frozen=True)
class MeshPods:
    """The pods of one mesh of `size` hosts at one moment."""

    mesh: str
    size: int
    addresses: Mapping[int, str]  # of the ranks that are ready
    obstacles: Mapping[str, Obstacle]  # by the pod's name
    skipped: Mapping[str, str] = field(default_factory=dict)  # pods that have no rank here, and why

    @property
    def missing(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self.addresses]

    @property
    def workers(self) -> list[str]:
        """Returns addresses by rank; only when none is missing."""
        return [self.addresses[rank] for rank in range(self.size)]

    def why(self) -> str:
        """Says in one line what is waited for."""
        if not self.missing:
            return f"{self.mesh}: all {self.size} pods are ready"
        line = f"{self.mesh}: {len(self.addresses)}/{self.size} pods are ready, missing ranks: {_numbers(self.missing)}"
        groups: dict[str, list[str]] = {}
        for pod, obstacle in self.obstacles.items():
            groups.setdefault(obstacle.why, []).append(pod)
        shown = [f"{_some(pods)}: {why}" for why, pods in list(groups.items())[:_MOST_SHOWN]]
        return "; ".join([line, *shown])


def look(
    mesh: str,
    size: int,
    pods: Iterable[Pod],
    *,
    scheme: str = "tcp",
    rank_label: str = POD_INDEX,
    ours: Callable[[Pod], bool] = lambda pod: True,
) -> MeshPods:
    """Returns what the pods that were found for a mesh amount to. Pods that are not `ours` are another job's: not counted."""
    newest: dict[int, Pod] = {}  # while a pod is replaced, two have its rank
    skipped: dict[str, str] = {}
    for pod in sorted(filter(ours, pods), key=lambda pod: _text(pod, "metadata", "creationTimestamp")):
        rank = rank_of(pod, rank_label)
        if rank is not None and 0 <= rank < size:
            newest[rank] = pod
        else:
            value = "no" if rank is None else f"{rank} as"
            skipped[name_of(pod)] = f"it has {value} rank in label {rank_label}; expected 0 to {size - 1}"
    found = {rank: obstacle_of(pod) for rank, pod in sorted(newest.items())}
    addresses = {rank: address_of(newest[rank], scheme) for rank, obstacle in found.items() if obstacle is None}
    obstacles = {name_of(newest[rank]): obstacle for rank, obstacle in found.items() if obstacle is not None}
    return MeshPods(mesh, size, addresses, obstacles, skipped)


class Patience:
    """Times for which pods have had obstacles that do not pass by themselves. A container that crashes is up for moments in
    between: an obstacle is over when it was not seen for `RECOVERED` seconds."""

    RECOVERED = 60.0

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}  # pod -> first and last time

    def ended(self, pods: MeshPods, now: float) -> tuple[str, Obstacle] | None:
        """(pod, obstacle) for which waiting ends."""
        stuck = {pod: obstacle for pod, obstacle in pods.obstacles.items() if obstacle.patience < math.inf}
        for pod in [pod for pod, seen in self._seen.items() if pod not in stuck and now - seen[1] >= self.RECOVERED]:
            del self._seen[pod]
        for pod, obstacle in stuck.items():
            since = self._seen.get(pod, (now, now))[0]
            self._seen[pod] = (since, now)
            if now - since >= obstacle.patience:
                return pod, obstacle
        return None


def name_of(pod: Pod) -> str:
    return _text(pod, "metadata", "name")


def rank_of(pod: Pod, label: str = POD_INDEX) -> int | None:
    """The number in the label. Kubernetes before 1.28 gives StatefulSets' pods no index label: there the ordinal at the end
    of the pod's name stands for it."""
    value = within(pod, "metadata", "labels", label)
    if value is None and label == POD_INDEX and _owner_kind(pod) == "StatefulSet":
        value = name_of(pod).rpartition("-")[2]
    return _number(value)


def address_of(pod: Pod, scheme: str) -> str:
    """Returns the address at which its worker is dialled."""
    ip = _text(pod, "status", "podIP")
    return f"{scheme}://{f'[{ip}]' if ':' in ip else ip}:{port_of(pod)}"


def port_of(pod: Pod) -> int:
    """Returns what MONARCH_PORT says in one of its containers, else the port that workers have by default."""
    for variable in _variables(pod):
        value = _number(variable.get("value"))
        if variable.get("name") == PORT_VARIABLE and value is not None:
            return value
    return DEFAULT_PORT


def secret_of(pod: Pod) -> tuple[str, str] | None:
    """(name of the Secret, key in it) from which its worker has its secret."""
    for variable in _variables(pod):
        found = _map(variable, "valueFrom", "secretKeyRef")
        if variable.get("name") == SECRET_VARIABLE and found:
            return str(found.get("name", "")), str(found.get("key", SECRET_KEY))
    return None


def job_of(pod: Pod) -> str:
    """The job that made it; "" for what others made."""
    found = (variable.get("value") for variable in _variables(pod) if variable.get("name") == JOB_VARIABLE)
    return next((str(value) for value in found), "")


def obstacle_of(pod: Pod) -> Obstacle | None:
    """None for a pod that is ready and stays."""
    if within(pod, "metadata", "deletionTimestamp"):
        return Obstacle("is being deleted")
    status = _map(pod, "status")
    phase = str(status.get("phase") or "Unknown")
    if phase in ("Failed", "Succeeded"):
        return Obstacle(_said(status.get("reason") or phase, status.get("message")))
    for container in [*_maps(status, "initContainerStatuses"), *_maps(status, "containerStatuses")]:
        found = _waiting(container)
        if found is not None:
            return found
    conditions = {str(condition.get("type")): condition for condition in _maps(status, "conditions")}
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        return Obstacle(_said(scheduled.get("reason") or "not scheduled", scheduled.get("message")))
    ready = conditions.get("Ready") or {}
    if ready.get("status") == "True":
        return None if status.get("podIP") else Obstacle("has no address yet")
    return Obstacle(_said(phase, ready.get("message")))


def _waiting(container: Mapping[str, Any]) -> Obstacle | None:
    """Returns why a container does not run; None if it does, or is being made."""
    waiting = _map(container, "state", "waiting")
    reason = str(waiting.get("reason") or "")
    name = str(container.get("name", ""))
    if reason == "CrashLoopBackOff":
        return Obstacle(_said(reason, _ended(_map(container, "lastState", "terminated"))), HOPELESS[reason], name)
    if reason not in _ORDINARY:
        message, image = str(waiting.get("message") or ""), str(container.get("image") or "")
        if image and image not in message and "Image" in reason:
            message = f"image {image!r}: {message}"
        return Obstacle(_said(reason, message), HOPELESS.get(reason, math.inf))
    terminated = _map(container, "state", "terminated")
    if terminated.get("exitCode"):  # an init container that is done says 0
        return Obstacle(_said("the container ended", _ended(terminated)), FIXABLE, name)
    return None


def _ended(terminated: Mapping[str, Any]) -> str:
    if not terminated:
        return ""
    words = f"exit code {terminated.get('exitCode')}"
    if terminated.get("reason") not in (None, "Error", "Completed"):
        words = f"{terminated['reason']}, {words}"
    return _said(words, terminated.get("message"))


def _said(reason: Any, message: Any) -> str:
    """Returns reason and message on one line."""
    words = " ".join(str(message or "").split())
    return f"{reason}: {words}" if words else str(reason)


def _variables(pod: Pod) -> Iterable[Mapping[str, Any]]:
    for container in _maps(pod, "spec", "containers"):
        yield from _maps(container, "env")


def _owner_kind(pod: Pod) -> str:
    owners = _maps(pod, "metadata", "ownerReferences")
    return next((str(owner.get("kind")) for owner in owners if owner.get("controller")), "")


def within(found: Any, *keys: str) -> Any:
    """Returns what is there in objects of objects; None where there is nothing."""
    for key in keys:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found


def _map(found: Any, *keys: str) -> Mapping[str, Any]:
    """Returns what should be an object there; an empty one when it is none."""
    value = within(found, *keys)
    return value if isinstance(value, Mapping) else {}


def _maps(found: Any, *keys: str) -> list[Mapping[str, Any]]:
    """Returns the objects of what should be a list of them."""
    value = within(found, *keys)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _text(found: Any, *keys: str) -> str:
    return str(within(found, *keys) or "")


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, str) and _NUMBER.match(value) else None


def _numbers(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"[{shown}, ... {len(ranks) - 8} more]" if len(ranks) > 8 else f"[{shown}]"


def _some(pods: list[str]) -> str:
    return f"pod {pods[0]}" if len(pods) == 1 else f"pod {pods[0]} and {len(pods) - 1} more"
