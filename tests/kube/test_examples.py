"""The YAML in examples/kubernetes is what a job makes and needs."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from monarch.job import WorkerLaunch
from monarch.job.kubernetes import ImageSpec, KubeConfig, KubernetesJob, manifests
from monarch.job.kubernetes.manifests import Names
from tests.kube.lab import IMAGE, NAMESPACE, Lab, lab
from tests.kube.values import EXAMPLES, allowed
from tests.support.hosts import ROOT


@pytest.mark.parametrize(("file", "operator"), [("statefulset.yaml", False), ("monarchmesh.yaml", True)])
def test_the_objects_are_those_of_a_job(file: str, operator: bool) -> None:
    names, launch = Names("research", "example"), WorkerLaunch("not in here")
    image = ImageSpec("registry.local/train:1", {"nvidia.com/gpu": 8}, shared_memory_size="16Gi")
    variables = manifests.environment(launch.environment(), names, 26600)
    template = manifests.pod_template(image, launch.command("python", "tcp://*:26600"), variables)
    made = manifests.mesh_objects(names, "trainers", 4, 26600, template, operator=operator)
    assert list(yaml.safe_load_all((EXAMPLES / file).read_text())) == made


def asked(method: str, path: str) -> tuple[str, str, str] | None:
    """Returns what a request needs the permission for; None for what everybody may look up."""
    _, kind, *parts = path.split("/")
    group, rest = ("", parts[1:]) if kind == "api" else (parts[0], parts[2:])
    if not rest:
        return None
    _, _, resource, *names = rest
    verb = {"GET": "get" if names else "list", "POST": "create", "PATCH": "patch", "DELETE": "delete"}[method]
    return group, "/".join([resource, *names[1:]]), verb


@pytest.mark.parametrize("operator", [False, True])
def test_the_role_allows_what_a_job_does(operator: bool) -> None:
    with lab(operator) as cluster:
        requests = of_a_life(cluster)
    needed = {permission for request in requests if (permission := asked(*request)) is not None}
    assert len(needed) > 5
    assert needed <= allowed()


def of_a_life(cluster: Lab) -> list[Any]:
    """Returns what is asked of the API when jobs are made, taken over, looked at in every state, and killed."""
    jobs = []
    for size in (1, 2):
        job = KubernetesJob(NAMESPACE, kubeconfig=KubeConfig.from_path(cluster.kubeconfig()))
        job.add_mesh("trainers", size, image_spec=ImageSpec(IMAGE))
        job.apply()
        cluster.do(lambda: None)
        job._poll()
        jobs.append(job)
    jobs[0]._poll()
    jobs[1]._connected().last_words("trainers-0", "worker")
    jobs[1]._connected().warning(manifests.STATEFUL_SET, "trainers")
    jobs[1]._connected().secret(jobs[1]._names.secret, "secret")
    for job in jobs:
        job.kill()
    return cluster.api.requests


def test_commands_of_the_page_find_what_a_job_makes() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    found = re.findall(r"`kubectl (?:get|delete) (\w+)(?: -n research)? -l ([^`=]+)(?:=<job>)?`", page)
    assert len(found) == page.count("`kubectl ") == 3
    labels = manifests.secret(Names("research", "example"), "not in here")["metadata"]["labels"]
    for plural, label in found:
        assert plural == "secret" and label in labels
