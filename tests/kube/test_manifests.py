"""Tests of what a job asks a cluster for."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from monarch.job.kubernetes import ImageSpec, manifests
from monarch.job.kubernetes.manifests import Names
from monarch.job.kubernetes.mesh import pod_mesh

NAMES = Names("research", "a1b2", "uid-7")
SECRET = "very-secret"
VARIABLES = manifests.environment({"MONARCH_SECRET": SECRET, "MONARCH_TLS_CA": "/tls/ca.pem"}, NAMES, 26600)
COMMAND = ["python", "-m", "monarch", "worker"]


def objects(operator: bool, **options: Any) -> list[manifests.Manifest]:
    template = manifests.pod_template(ImageSpec("image:1"), COMMAND, VARIABLES)
    return manifests.mesh_objects(NAMES, "trainers", 4, 26600, template, operator=operator, **options)


def test_a_secret_is_in_no_object_but_the_secret() -> None:
    made = manifests.secret(Names("research", "a1b2"), SECRET)
    assert made["metadata"]["name"] == "monarch-a1b2"
    assert base64.b64decode(made["data"]["secret"]).decode() == SECRET
    assert "ownerReferences" not in made["metadata"]
    for operator in (False, True):
        assert SECRET not in json.dumps(objects(operator))
    source = {"secretKeyRef": {"name": "monarch-a1b2", "key": "secret"}}
    assert {"name": "MONARCH_SECRET", "valueFrom": source} in VARIABLES
    assert {"name": "MONARCH_TLS_CA", "value": "/tls/ca.pem"} in VARIABLES


def test_with_the_operator_a_mesh_is_one_object() -> None:
    (mesh,) = objects(True, labels={"kueue.x-k8s.io/queue-name": "gpus"}, annotations={"team": "vision"})
    assert (mesh["apiVersion"], mesh["kind"]) == ("monarch.pytorch.org/v1alpha1", "MonarchMesh")
    assert mesh["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "gpus", "monarch.pytorch.org/job": "a1b2"}
    assert mesh["metadata"]["annotations"] == {"team": "vision"}
    assert (mesh["spec"]["replicas"], mesh["spec"]["port"]) == (4, 26600)
    assert mesh["spec"]["podTemplate"]["spec"]["containers"][0]["command"] == COMMAND


def test_without_it_the_job_makes_what_the_operator_would() -> None:
    service, pods = objects(False, labels={"kueue.x-k8s.io/queue-name": "gpus"})
    labels = {"app.kubernetes.io/name": "monarch-worker", "monarch.pytorch.org/mesh-name": "trainers"}
    assert (service["kind"], service["metadata"]["name"]) == ("Service", "trainers-svc")
    assert (service["spec"]["clusterIP"], service["spec"]["selector"]) == ("None", labels)
    assert (pods["kind"], pods["metadata"]["name"]) == ("StatefulSet", "trainers")
    assert pods["spec"]["serviceName"] == "trainers-svc"
    assert pods["spec"]["podManagementPolicy"] == "Parallel"
    assert pods["spec"]["selector"]["matchLabels"] == labels
    assert pods["spec"]["template"]["metadata"]["labels"] == labels
    assert pods["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    for made in (service, pods):  # whoever deletes the Secret deletes them
        assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-7"


def test_an_image_becomes_a_pod() -> None:
    image = ImageSpec("image:1", {"cpu": 4, "nvidia.com/gpu": 8}, enable_fuse=True, shared_memory_size="16Gi")
    spec = manifests.pod_template(image, COMMAND, VARIABLES)["spec"]
    (container,) = spec["containers"]
    assert container["name"] == "worker"
    assert container["resources"] == {
        "requests": {"cpu": "4", "nvidia.com/gpu": "8"},
        "limits": {"cpu": "4", "nvidia.com/gpu": "8"},
    }
    assert container["securityContext"] == {"privileged": True}
    assert {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]} == {
        "dev-fuse": "/dev/fuse",
        "dev-shm": "/dev/shm",
    }
    assert spec["volumes"] == [
        {"name": "dev-fuse", "hostPath": {"path": "/dev/fuse", "type": "CharDevice"}},
        {"name": "dev-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
    ]
    plain = manifests.pod_template(ImageSpec("image:1"), COMMAND, VARIABLES)["spec"]
    assert "volumes" not in plain and "resources" not in plain["containers"][0]


def test_a_template_of_the_user_is_given_what_its_worker_needs() -> None:
    from kubernetes import client

    own = client.V1EnvVar(name="MONARCH_PORT", value="7")
    container = client.V1Container(name="mine", image="image:2", env=[own])
    sidecar = client.V1Container(name="logs", image="image:3")
    given = client.V1PodTemplateSpec(spec=client.V1PodSpec(containers=[container, sidecar], node_name="n1"))
    mesh = mesh_of(pod_template=given)
    made = mesh.pod_template(COMMAND, VARIABLES)
    assert made["spec"]["nodeName"] == "n1"
    first, second = made["spec"]["containers"]
    assert [variable["name"] for variable in first["env"]] == [
        "MONARCH_PORT",
        "MONARCH_APPLY_ID",
        "MONARCH_SECRET",
        "MONARCH_TLS_CA",
    ]
    assert first["env"][0]["value"] == "7"
    assert "env" not in second
    assert mesh.template is not None and "MONARCH_SECRET" not in json.dumps(mesh.template)


def mesh_of(name: Any = "trainers", size: Any = 2, **options: Any) -> Any:
    rest = {
        "label_selector": None,
        "pod_rank_label": manifests.POD_INDEX,
        "image_spec": None,
        "port": 26600,
        "pod_template": None,
        "labels": None,
        "annotations": None,
    }
    return pod_mesh(name, size, **(rest | options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": ""}, "is empty"),
        ({"name": "a" * 64}, "63 characters at most"),
        ({"name": "a" * 53, "image_spec": ImageSpec("i")}, "52 characters at most"),
        ({"name": "Trainers"}, "lowercase alphanumeric"),
        ({"name": "a-b"}, "lowercase alphanumeric"),
        ({"name": "4trainers"}, "must start with a letter"),
        ({"size": 0}, "one host or more"),
        ({"port": 0}, "1 to 65535"),
        ({"image_spec": ImageSpec("i"), "pod_template": {"spec": {}}}, "give one of them"),
        ({"image_spec": ImageSpec("i"), "label_selector": "a=b"}, "find pods that others made"),
        ({"image_spec": ImageSpec("i"), "pod_rank_label": "rank"}, "find pods that others made"),
        ({"labels": {}}, "for pods that the job makes"),
        ({"annotations": {"a": "b"}}, "for pods that the job makes"),
        ({"pod_template": {"spec": {"containers": []}}}, "has no container"),
        ({"pod_template": {"spec": {"containers": [{"env": [{"name": "MONARCH_SECRET"}]}]}}}, "leave it out"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        mesh_of(**options)


def test_pods_of_others_are_found_by_the_labels_that_all_have() -> None:
    assert mesh_of().selector == "app.kubernetes.io/name=monarch-worker,monarch.pytorch.org/mesh-name=trainers"
    assert not mesh_of().provisioned
    assert mesh_of(label_selector="volcano.sh/job-name=t").selector == "volcano.sh/job-name=t"
