"""All that a job makes is what the API takes, by the official models; and the check that says so sees what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from monarch.job import WorkerLaunch
from monarch.job.kubernetes import ImageSpec, manifests
from monarch.job.kubernetes.manifests import KINDS, Names
from tests.kube import schema
from tests.kube.schema import Invalid, Malformed
from tests.kube.values import places, with_
from tests.support.hosts import ROOT

NAMES = Names("research", "a1b2", "uid-7")
IMAGES = (
    ImageSpec("registry.local/train:1"),
    ImageSpec("registry.local/train:1", {"cpu": 0.5, "memory": "16Gi", "nvidia.com/gpu": 8}, True, "16Gi"),
)


def made() -> Iterator[dict[str, Any]]:
    """The objects that jobs make."""
    yield manifests.secret(Names("research", "a1b2"), "the secret")
    for image in IMAGES:
        launch = WorkerLaunch("the secret", 60.0, {"ca": "/tls/ca.pem"})
        variables = manifests.environment(launch.environment(), NAMES, 26600)
        template = manifests.pod_template(image, launch.command("python", "tcp://*:26600"), variables)
        for operator in (False, True):
            yield from manifests.mesh_objects(
                NAMES, "trainers", 4, 26600, template, operator=operator,
                labels={"kueue.x-k8s.io/queue-name": "gpus"}, annotations={"team": "vision, and speech"},
            )  # fmt: skip


def check(body: Any) -> None:
    schema.check(body["apiVersion"], body["kind"], body)


def one(kind: str) -> dict[str, Any]:
    return [body for body in made() if body["kind"] == kind][-1]


@pytest.mark.parametrize("body", list(made()), ids=lambda body: body["kind"])
def test_the_api_takes_what_a_job_makes(body: Any) -> None:
    assert body["apiVersion"] == KINDS[body["kind"]].api_version
    check(body)


@pytest.mark.parametrize("file", ["rbac.yaml", "statefulset.yaml", "monarchmesh.yaml"])
def test_the_api_takes_the_examples(file: str) -> None:
    bodies = list(yaml.safe_load_all((ROOT / "examples" / "kubernetes" / file).read_text()))
    assert bodies
    for body in bodies:
        check(body)


# Maps of strings, in which any key is good, and numbers or words, of which any is.
FREE = {"labels", "annotations", "matchLabels", "selector", "data", "requests", "limits", "targetPort"}


@pytest.mark.parametrize("body", list(made()), ids=lambda body: body["kind"])
def test_an_unknown_field_and_a_wrong_type_are_seen_everywhere(body: Any) -> None:
    seen = 0
    for way in [way for way in places(body) if FREE.isdisjoint(map(str, way))]:
        at = body
        for key in way:
            at = at[key]
        if isinstance(at, dict):
            with pytest.raises(Malformed, match="unknown field"):
                check(with_(body, (*way, "extra"), 1))
        if way not in (("apiVersion",), ("kind",)):
            with pytest.raises(Malformed, match="cannot unmarshal"):
                check(with_(body, way, 0.5))
            with pytest.raises(Malformed, match="cannot unmarshal"):
                check(with_(body, way, "no list" if isinstance(at, list) else ["a list"]))
        seen += 1
    assert seen > 6


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("StatefulSet", ("spec", "selector")),
        ("StatefulSet", ("spec", "template")),
        ("StatefulSet", ("spec", "template", "spec", "containers")),
        ("StatefulSet", ("spec", "template", "spec", "containers", 0, "name")),
        ("StatefulSet", ("spec", "template", "spec", "containers", 0, "env", 0, "name")),
        ("StatefulSet", ("spec", "template", "spec", "containers", 0, "volumeMounts", 0, "mountPath")),
        ("Service", ("spec", "ports", 0, "port")),
        ("Service", ("metadata", "ownerReferences", 0, "uid")),
        ("MonarchMesh", ("spec", "podTemplate")),
        ("MonarchMesh", ("spec", "replicas")),
    ],
)
def test_a_missing_field_is_seen(kind: str, way: tuple[Any, ...]) -> None:
    with pytest.raises(Invalid, match=rf"{way[-1]}: Required value"):
        check(with_(one(kind), way, None))


POD = ("spec", "template", "spec")
FIRST = (*POD, "containers", 0)


@pytest.mark.parametrize(
    ("kind", "way", "value", "words"),
    [
        ("Secret", ("metadata", "name"), "Not_DNS", "must be a DNS name"),
        ("Secret", ("data", "secret"), "no base64!", "illegal base64"),
        ("Service", ("metadata", "name"), "a" * 64, "at most 63"),
        ("Service", ("metadata", "labels", "team"), "two words", "a valid label"),
        ("Service", ("metadata", "labels", "-x"), "", "name part"),
        ("Service", ("metadata", "annotations"), {"Team/x": "a"}, "prefix part"),
        ("Service", ("spec", "ports", 0, "port"), 65536, "between 1 and 65535"),
        ("Service", ("spec", "ports", 0, "name"), "UPPER", "spec.ports.name"),
        ("StatefulSet", ("metadata", "name"), "a" * 53, "at most 52"),
        ("StatefulSet", ("spec", "replicas"), -1, "greater than or equal to 0"),
        ("StatefulSet", ("spec", "selector", "matchLabels", "more"), "x", "does not match template"),
        ("StatefulSet", ("spec", "podManagementPolicy"), "Sometimes", "podManagementPolicy"),
        ("StatefulSet", (*POD, "restartPolicy"), "Never", 'supported values: "Always"'),
        ("StatefulSet", (*POD, "activeDeadlineSeconds"), 60, "is not Supported"),
        ("StatefulSet", (*FIRST, "image"), "", "image: Required value"),
        ("StatefulSet", (*FIRST, "image"), " x", "whitespace"),
        ("StatefulSet", (*FIRST, "name"), "Worker", "containers.name"),
        ("StatefulSet", (*FIRST, "resources", "limits", "memory"), "16 GiB", "quantities must match"),
        ("StatefulSet", (*FIRST, "resources", "requests", "nvidia.com/gpu"), "1", "must be equal to"),
        ("StatefulSet", (*FIRST, "volumeMounts", 0, "name"), "other", "Not found"),
        ("StatefulSet", (*FIRST, "volumeMounts", 0, "mountPath"), "/dev/shm", "must be unique"),
        ("StatefulSet", (*POD, "volumes", 0, "emptyDir"), {}, "one volume type"),
        ("MonarchMesh", ("spec", "port"), 0, "between 1 and 65535"),
    ],
)
def test_the_rules_that_are_documented_are_kept(kind: str, way: tuple[Any, ...], value: Any, words: str) -> None:
    with pytest.raises((Malformed, Invalid), match=words):
        check(with_(one(kind), way, value))


def stored(kind: str) -> dict[str, Any]:
    body = one(kind)
    body["metadata"] |= {"uid": "uid-1"}
    return body


@pytest.mark.parametrize(
    ("kind", "way", "value"),
    [
        ("Secret", ("data",), {}),
        ("Secret", ("type",), "other"),
        ("Service", ("spec", "clusterIP"), "10.0.0.1"),
        ("Service", ("metadata", "uid"), "uid-2"),
        ("StatefulSet", ("spec", "serviceName"), "other"),
        ("StatefulSet", ("spec", "selector", "matchLabels", "more"), "x"),
        ("StatefulSet", ("spec", "podManagementPolicy"), "OrderedReady"),
    ],
)
def test_what_is_immutable_is_not_changed(kind: str, way: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(Invalid, match=r"immutable|Forbidden: updates to statefulset spec"):
        schema.check_change(kind, stored(kind), with_(stored(kind), way, value))


def test_what_may_change_does() -> None:
    kind = "StatefulSet"
    schema.check_change(kind, stored(kind), with_(stored(kind), ("spec", "replicas"), 7))
    schema.check_change(kind, stored(kind), with_(stored(kind), ("spec", "template", "spec", "hostname"), "x"))
