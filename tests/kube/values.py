"""Helpers of several tests of Kubernetes: a clock, a job and its pods, the Role of the examples, ways through objects."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import yaml

from monarch.job.kubernetes import ImageSpec, KubeConfig, KubernetesJob
from tests.kube.api_server import APPS, CORE, ApiServer
from tests.kube.lab import IMAGE, NAMESPACE, POD_INDEX, Lab
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


def job_in(
    cluster: ApiServer | Lab, size: int = 2, image: str = IMAGE, kubeconfig: KubeConfig | None = None, **options: Any
) -> KubernetesJob:
    """A job of one mesh, trainers."""
    job = KubernetesJob(NAMESPACE, kubeconfig=kubeconfig or KubeConfig.from_path(cluster.kubeconfig()), **options)
    job.add_mesh("trainers", size, image_spec=ImageSpec(image))
    return job


def start(api: ApiServer, size: int = 2, **status: Any) -> None:
    """Does as the StatefulSet controller and kubelet do: pods that are ready, or have this status."""
    (item,) = api.store.list(APPS, "statefulsets", NAMESPACE)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for rank in range(size):
        labels = item["spec"]["selector"]["matchLabels"] | {POD_INDEX: str(rank)}
        owners = item["metadata"]["ownerReferences"]
        metadata = {"name": f"trainers-{rank}", "labels": labels, "ownerReferences": owners}
        kept = {"podIP": f"10.0.0.{rank}"} | (status or ready)
        body = {"metadata": metadata, "spec": item["spec"]["template"]["spec"], "status": kept}
        api.store.create(CORE, "pods", NAMESPACE, body)


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
