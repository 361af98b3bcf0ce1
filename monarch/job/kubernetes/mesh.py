"""One mesh of a KubernetesJob, as its program describes it, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monarch.job.kubernetes import manifests
from monarch.job.kubernetes.image_spec import ImageSpec
from monarch.job.kubernetes.manifests import Manifest
from monarch.job.worker_launch import SECRET as SECRET_VARIABLE

_LONGEST = 63
_LONGEST_MADE = 52  # of a StatefulSet, which puts its name, a dash and ten characters into a label of each pod
_NAME = re.compile(r"[a-z0-9]+\Z")
_OWN_SECRET = (SECRET_VARIABLE, f"{SECRET_VARIABLE}_FILE")
_HIGHEST_PORT = 65535


@dataclass(frozen=True)
class PodMesh:
    """`size` pods. Those with an `image` or a `template` are made by the job; others are there, found by `selector`."""

    name: str
    size: int
    selector: str
    rank_label: str
    port: int
    image: ImageSpec | None
    template: Manifest | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def provisioned(self) -> bool:
        return self.image is not None or self.template is not None

    def pod_template(self, command: list[str], variables: list[Manifest]) -> Manifest:
        if self.template is not None:
            return manifests.with_environment(self.template, variables)
        assert self.image is not None
        return manifests.pod_template(self.image, command, variables)


def pod_mesh(
    name: str,
    size: int,
    label_selector: str | None,
    pod_rank_label: str,
    image_spec: ImageSpec | None,
    port: int,
    pod_template: Any,
    labels: Mapping[str, str] | None,
    annotations: Mapping[str, str] | None,
) -> PodMesh:
    """Checks the arguments of `add_mesh`; ValueError for what cannot be."""
    _check_name(name)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f"mesh {name!r} has one host or more, got num_replicas={size!r}")
    if not 0 < port <= _HIGHEST_PORT:
        raise ValueError(f"mesh {name!r}: port is a number from 1 to {_HIGHEST_PORT}, got {port!r}")
    if image_spec is not None and pod_template is not None:
        raise ValueError(f"mesh {name!r}: image_spec and pod_template both say what the pods are; give one of them")
    if image_spec is not None or pod_template is not None:
        if label_selector is not None or pod_rank_label != manifests.POD_INDEX:
            raise ValueError(
                f"mesh {name!r}: label_selector and pod_rank_label find pods that others made; with image_spec or "
                "pod_template the job makes them"
            )
        if len(name) > _LONGEST_MADE:
            raise ValueError(
                f"the name of a mesh whose pods the job makes has {_LONGEST_MADE} characters at most, {name!r} has "
                f"{len(name)}: a StatefulSet of a longer name gets no pods"
            )
    elif labels is not None or annotations is not None:
        raise ValueError(
            f"mesh {name!r}: labels and annotations are for pods that the job makes; give image_spec or pod_template too"
        )
    template = None if pod_template is None else _plain(pod_template)
    if template is not None:
        _check_template(name, template)
    return PodMesh(
        name,
        size,
        label_selector or manifests.selector(name),
        pod_rank_label,
        port,
        image_spec,
        template,
        dict(labels or {}),
        dict(annotations or {}),
    )


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError("the name of a mesh is empty")
    if len(name) > _LONGEST:
        raise ValueError(f"the name of a mesh has {_LONGEST} characters at most, {name!r} has {len(name)}")
    if not _NAME.match(name):
        raise ValueError(f"the name of a mesh is lowercase alphanumeric (a to z, 0 to 9), got {name!r}")
    if not name[0].isalpha():
        raise ValueError(f"the name of a mesh must start with a letter, got {name!r}")


def _check_template(name: str, template: Manifest) -> None:
    containers = (template.get("spec") or {}).get("containers") or []
    if not containers:
        raise ValueError(f"mesh {name!r}: pod_template has no container; its spec.containers[0] has to run a worker")
    for variable in containers[0].get("env") or []:
        if variable.get("name") in _OWN_SECRET:
            raise ValueError(
                f"mesh {name!r}: pod_template sets {variable['name']}; leave it out: the job makes a secret, and gives it to "
                "the first container"
            )


def _plain(template: Any) -> Manifest:
    """A V1PodTemplateSpec as the API takes it; a dict is that already."""
    if not isinstance(template, dict):
        from kubernetes import client

        template = client.ApiClient().sanitize_for_serialization(template)
    return dict(template)
