"""The wishes of a job to a cluster, as the API takes it. Pure: values in, dicts out.

With the operator a mesh is one MonarchMesh, of which the operator makes the rest. Without it the job makes the same itself:

    Secret        the job's secret; owns all the others, so that deleting it deletes the job
    StatefulSet   the pods, `<mesh>-0` to `<mesh>-<n-1>`: one that is evicted comes back under its number
    Service       `<mesh>-svc`, headless, so that pods have names
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from monarch.job.kubernetes.image_spec import ImageSpec
from monarch.job.worker_launch import SECRET as SECRET_VARIABLE

Manifest = dict[str, Any]

DEFAULT_PORT = 26600
PORT_VARIABLE = "MONARCH_PORT"
JOB_VARIABLE = "MONARCH_APPLY_ID"  # by which a job knows its own pods
SECRET_KEY = "secret"  # in the Secret's data

GROUP = "monarch.pytorch.org"
MESH_LABEL = f"{GROUP}/mesh-name"
JOB_LABEL = f"{GROUP}/job"
APP_LABEL = "app.kubernetes.io/name"
APP = "monarch-worker"
POD_INDEX = "apps.kubernetes.io/pod-index"
_GRACE = 5  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True)
class ResourceKind:
    """A kind of object, and where the API has it. `group` "" is the core."""

    name: str
    group: str
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


SECRET = ResourceKind("Secret", "", "v1", "secrets")
SERVICE = ResourceKind("Service", "", "v1", "services")
STATEFUL_SET = ResourceKind("StatefulSet", "apps", "v1", "statefulsets")
MONARCH_MESH = ResourceKind("MonarchMesh", GROUP, "v1alpha1", "monarchmeshes")
KINDS = {kind.name: kind for kind in (SECRET, SERVICE, STATEFUL_SET, MONARCH_MESH)}


@dataclass(frozen=True)
class Names:
    """Names that the objects of one job have in common. `owner` is the uid of the job's Secret, "" before it is there."""

    namespace: str
    job: str
    owner: str = ""

    @property
    def secret(self) -> str:
        return f"monarch-{self.job}"


def labels(mesh: str) -> dict[str, str]:
    """Returns the labels of a mesh's pods."""
    return {APP_LABEL: APP, MESH_LABEL: mesh}


def selector(mesh: str) -> str:
    """Finds the pods of a mesh."""
    return ",".join(f"{label}={value}" for label, value in labels(mesh).items())


def secret(names: Names, value: str) -> Manifest:
    made = _object(SECRET, names.secret, names, {APP_LABEL: APP}, {})
    return made | {
        "type": "Opaque",
        "immutable": True,
        "data": {SECRET_KEY: base64.b64encode(value.encode()).decode()},
    }


def mesh_objects(
    names: Names,
    mesh: str,
    replicas: int,
    port: int,
    template: Manifest,
    *,
    operator: bool,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> list[Manifest]:
    """The objects of one mesh, in the order in which they are made. `labels` and `annotations` go to the object that makes
    the pods."""
    make = _monarch_mesh if operator else _stateful_set
    pods = make(names, mesh, replicas, port, template, dict(labels or {}), dict(annotations or {}))
    return [pods] if operator else [_service(names, mesh, port), pods]


def _monarch_mesh(
    names: Names, mesh: str, replicas: int, port: int, template: Manifest, labels: dict[str, str], notes: dict[str, str]
) -> Manifest:
    made = _object(MONARCH_MESH, mesh, names, labels, notes)
    return made | {"spec": {"replicas": replicas, "port": port, "podTemplate": template}}


def _stateful_set(
    names: Names, mesh: str, replicas: int, port: int, template: Manifest, added: dict[str, str], notes: dict[str, str]
) -> Manifest:
    template = copy.deepcopy(template)
    metadata = template.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels(mesh)}
    return _object(STATEFUL_SET, mesh, names, labels(mesh) | added, notes) | {
        "spec": {
            "replicas": replicas,
            "serviceName": service_name(mesh),
            "podManagementPolicy": "Parallel",  # all at once: no pod waits for the one before it
            "selector": {"matchLabels": labels(mesh)},
            "template": template,
        }
    }


def _service(names: Names, mesh: str, port: int) -> Manifest:
    return _object(SERVICE, service_name(mesh), names, labels(mesh), {}) | {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # workers are dialled while they start
            "selector": labels(mesh),
            "ports": [{"name": "monarch", "port": port, "targetPort": port}],
        }
    }


def service_name(mesh: str) -> str:
    """Returns the service's name as the operator calls it."""
    return f"{mesh}-svc"


def _object(
    kind: ResourceKind, name: str, names: Names, added: Mapping[str, str], notes: Mapping[str, str]
) -> Manifest:
    metadata: Manifest = {
        "name": name,
        "namespace": names.namespace,
        "labels": {**added, JOB_LABEL: names.job},
    }
    if notes:
        metadata["annotations"] = dict(notes)
    if names.owner:
        metadata["ownerReferences"] = [
            {"apiVersion": SECRET.api_version, "kind": SECRET.name, "name": names.secret, "uid": names.owner}
        ]
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata}


# --- pods


def environment(plain: Mapping[str, str], names: Names, port: int) -> list[Manifest]:
    """The variables of a worker. The secret is a reference: those who may read pods, but not Secrets, do not see it."""
    found: list[Manifest] = [{"name": PORT_VARIABLE, "value": str(port)}, {"name": JOB_VARIABLE, "value": names.job}]
    for name, value in plain.items():
        if name == SECRET_VARIABLE:
            found.append({"name": name, "valueFrom": {"secretKeyRef": {"name": names.secret, "key": SECRET_KEY}}})
        else:
            found.append({"name": name, "value": value})
    return found


def pod_template(image: ImageSpec, command: list[str], variables: list[Manifest]) -> Manifest:
    """Pods of one container that runs `command`."""
    container: Manifest = {"name": "worker", "image": image.image, "command": command, "env": variables}
    # A worker has no last words: what it does was ended in order before its pod is.
    spec: Manifest = {"containers": [container], "terminationGracePeriodSeconds": _GRACE}
    mounts, volumes = [], []
    if image.resources:
        amounts = {name: str(amount) for name, amount in image.resources.items()}
        container["resources"] = {"requests": dict(amounts), "limits": dict(amounts)}
    if image.enable_fuse:
        container["securityContext"] = {"privileged": True}
        mounts.append({"name": "dev-fuse", "mountPath": "/dev/fuse"})
        volumes.append({"name": "dev-fuse", "hostPath": {"path": "/dev/fuse", "type": "CharDevice"}})
    if image.shared_memory_size:
        mounts.append({"name": "dev-shm", "mountPath": "/dev/shm"})
        volumes.append({"name": "dev-shm", "emptyDir": {"medium": "Memory", "sizeLimit": image.shared_memory_size}})
    if mounts:
        container["volumeMounts"] = mounts
        spec["volumes"] = volumes
    return {"spec": spec}


def with_environment(template: Manifest, variables: Iterable[Manifest]) -> Manifest:
    """A user's pod template whose first container has these variables, but for those that it sets itself."""
    template = copy.deepcopy(template)
    container = template["spec"]["containers"][0]
    own = container.get("env") or []
    taken = {variable.get("name") for variable in own}
    container["env"] = [*own, *(added for added in variables if added["name"] not in taken)]
    return template
