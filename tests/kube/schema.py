"""The checks of a real API server on what it is given: by the official client's models of the objects, whose fields, types
and required fields are those of the API's own description, and by the rules that Kubernetes documents beside them.

    unknown field, wrong type    400 BadRequest, as with fieldValidation=Strict
    missing field, broken rule   422 Invalid
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Object = dict[str, Any]

# The operator's kind, which the official models do not have: its spec.
MONARCH_MESH_SPEC = {"replicas": "int", "port": "int", "podTemplate": "V1PodTemplateSpec"}
OPERATOR = "monarch.pytorch.org/v1alpha1"
MODELS = {
    ("v1", "Pod"): "V1Pod",
    ("v1", "Secret"): "V1Secret",
    ("v1", "Service"): "V1Service",
    ("apps/v1", "StatefulSet"): "V1StatefulSet",
    ("rbac.authorization.k8s.io/v1", "Role"): "V1Role",
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): "V1RoleBinding",
    ("v1", "ServiceAccount"): "V1ServiceAccount",
}

_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL = re.compile(rf"{_PART}\Z")  # DNS-1123
_SUBDOMAIN = re.compile(rf"{_PART}(\.{_PART})*\Z")
_SERVICE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")  # DNS-1035
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?\Z")
_QUANTITY = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?\Z")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([a-z0-9]|-(?!-))*(?<!-)\Z")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*\Z")
_SHORT, _LONG = 63, 253
_PORT_NAME_LENGTH = 15
# What of a StatefulSet's spec may be changed.
_CHANGEABLE = {
    "replicas", "ordinals", "template", "updateStrategy", "persistentVolumeClaimRetentionPolicy", "minReadySeconds",
    "revisionHistoryLimit",
}  # fmt: skip
# A pod and a StatefulSet have names that end up in labels: `<name>-<10 characters>` is that of a revision.
_REVISION = 11


class Malformed(Exception):
    """400: what was sent does not decode."""


class Invalid(Exception):
    """422: what was sent breaks a rule."""


def check(version: str, kind: str, body: Any) -> None:
    """Checks an object that is to be stored."""
    if not isinstance(body, dict) or (body.get("apiVersion"), body.get("kind")) != (version, kind):
        raise Malformed(f"the object is no {kind} of {version}")
    named = {"apiVersion": "str", "kind": "str", "metadata": "V1ObjectMeta"}
    if version == OPERATOR:
        _fields(body, named | {"spec": "spec"}, ("metadata", "spec"), "")
        _fields(body["spec"], MONARCH_MESH_SPEC, MONARCH_MESH_SPEC, "spec")
    else:
        _typed(body, MODELS[version, kind], "")
    broken = [*_metadata(kind, body.get("metadata") or {}), *_RULES.get(kind, lambda body: ())(body)]
    if broken:
        name = (body.get("metadata") or {}).get("name")
        raise Invalid(f'{kind} "{name}" is invalid: {"; ".join(broken)}')


def check_change(kind: str, old: Object, new: Object) -> None:
    """Checks what may not be changed."""
    broken = [
        f"metadata.{key}" for key in ("name", "namespace", "uid") if new["metadata"].get(key) != old["metadata"][key]
    ]
    if kind == "Secret":
        broken += [] if new.get("type") == old.get("type") else ["type"]
        if old.get("immutable"):
            broken += [key for key in ("data", "immutable") if new.get(key) != old.get(key)]
    if kind == "Service" and new["spec"].get("clusterIP") != old["spec"].get("clusterIP"):
        broken.append("spec.clusterIP")
    if broken:
        raise Invalid(f'{kind} "{old["metadata"]["name"]}" is invalid: {", ".join(broken)}: field is immutable')
    if kind == "StatefulSet":
        kept = [{key: value for key, value in of["spec"].items() if key not in _CHANGEABLE} for of in (old, new)]
        if kept[0] != kept[1]:
            raise Invalid(
                f'StatefulSet.apps "{old["metadata"]["name"]}" is invalid: spec: Forbidden: updates to statefulset spec for '
                "fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
                "'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
            )


# --- fields and types


def _typed(value: Any, model: str, where: str) -> None:
    from kubernetes.client import models

    of = getattr(models, model)
    types = {of.attribute_map[name]: kind for name, kind in of.openapi_types.items()}
    _fields(value, types, (of.attribute_map[name] for name in _required(of)), where)


def _fields(value: Any, types: Mapping[str, str], required: Iterable[str], where: str) -> None:
    if not isinstance(value, dict):
        raise Malformed(f"json: cannot unmarshal {type(value).__name__} into field {where or '.'}")
    for name, item in value.items():
        path = f"{where}.{name}".lstrip(".")
        if name not in types:
            raise Malformed(f'strict decoding error: unknown field "{path}"')
        if item is not None:
            _value(item, types[name], path)
    for name in required:
        if value.get(name) is None:
            raise Invalid(f"{f'{where}.{name}'.lstrip('.')}: Required value")


_PLAIN = {"str": str, "bytes": str, "int": int, "float": (int, float), "bool": bool, "datetime": str}


def _value(value: Any, kind: str, where: str) -> None:
    if kind in ("object", "spec"):
        return
    if match := re.match(r"(?:list|List)\[(.+)\]\Z", kind):
        if not isinstance(value, list):
            raise Malformed(f"json: cannot unmarshal {type(value).__name__} into field {where} of type {kind}")
        for number, item in enumerate(value):
            _value(item, match[1], f"{where}[{number}]")
    elif match := re.match(r"(?:dict\(|Dict\[)str, (.+)[\])]\Z", kind):
        if not isinstance(value, dict):
            raise Malformed(f"json: cannot unmarshal {type(value).__name__} into field {where} of type {kind}")
        for name, item in value.items():
            _value(item, match[1], f"{where}.{name}")
    elif kind in _PLAIN:
        if not isinstance(value, _PLAIN[kind]) or (isinstance(value, bool) and kind != "bool"):
            raise Malformed(f"json: cannot unmarshal {type(value).__name__} into field {where} of type {kind}")
    else:
        _typed(value, kind, where)


def _required(model: Any) -> Iterator[str]:
    """The attributes that a model cannot be without, in the client's two ways of writing that down."""
    if hasattr(model, "model_fields"):
        yield from (name for name, field in model.model_fields.items() if field.is_required())
        return
    from kubernetes.client import Configuration

    lax, strict = Configuration(), Configuration()
    lax.client_side_validation, strict.client_side_validation = False, True
    empty = model(local_vars_configuration=lax)
    empty.local_vars_configuration = strict
    for name in model.openapi_types:
        try:
            setattr(empty, name, None)
        except ValueError:
            yield name


# --- rules


def _metadata(kind: str, metadata: Object) -> Iterator[str]:
    name = metadata.get("name") or ""
    pattern, longest = (_SERVICE_NAME, _SHORT) if kind == "Service" else (_SUBDOMAIN, _LONG)
    if kind == "StatefulSet":
        pattern, longest = _LABEL, _SHORT - _REVISION
    if not pattern.match(name) or len(name) > longest:
        yield f'metadata.name: Invalid value: "{name}": must be a DNS name of at most {longest} characters'
    yield from _labels(metadata.get("labels"), "metadata.labels")
    for key in metadata.get("annotations") or {}:
        yield from _key(key, "metadata.annotations")
    for owner in metadata.get("ownerReferences") or []:
        yield from (f"metadata.ownerReferences.{of}: must not be empty" for of in ("name", "uid") if not owner[of])


def _labels(labels: Mapping[str, str] | None, where: str) -> Iterator[str]:
    for key, value in (labels or {}).items():
        yield from _key(key, where)
        if not _VALUE.match(value) or len(value) > _SHORT:
            yield f'{where}: Invalid value: "{value}": a valid label has at most {_SHORT} characters of a kind'


def _key(key: str, where: str) -> Iterator[str]:
    prefix, slash, name = key.rpartition("/")
    if not name or not _VALUE.match(name) or len(name) > _SHORT:
        yield f'{where}: Invalid value: "{key}": name part must consist of alphanumeric characters, and be at most {_SHORT}'
    if slash and (not _SUBDOMAIN.match(prefix) or len(prefix) > _LONG):
        yield f'{where}: Invalid value: "{key}": prefix part must be a DNS name'


def _secret(body: Object) -> Iterator[str]:
    for key, value in (body.get("data") or {}).items():
        yield from () if re.match(r"[-._a-zA-Z0-9]+\Z", key) else (f'data[{key}]: Invalid value: "{key}"',)
        try:
            base64.b64decode(value, validate=True)
        except binascii.Error:
            raise Malformed(f"illegal base64 data in field data.{key}") from None


def _service(body: Object) -> Iterator[str]:
    spec = body["spec"]
    yield from _labels(spec.get("selector"), "spec.selector")
    ports = spec.get("ports") or []
    if not ports and spec.get("clusterIP") != "None":
        yield "spec.ports: Required value"
    for port in ports:
        yield from _port(port["port"], "spec.ports.port")
        if isinstance(port.get("targetPort"), int):
            yield from _port(port["targetPort"], "spec.ports.targetPort")
        if len(ports) > 1 and not port.get("name"):
            yield "spec.ports.name: Required value"
        if port.get("name") and (not _PORT_NAME.match(port["name"]) or len(port["name"]) > _PORT_NAME_LENGTH):
            yield f'spec.ports.name: Invalid value: "{port["name"]}"'


def _port(port: int, where: str) -> Iterator[str]:
    if not 0 < port < 1 << 16:
        yield f"{where}: Invalid value: {port}: must be between 1 and 65535, inclusive"


def _stateful_set(body: Object) -> Iterator[str]:
    spec = body["spec"]
    wanted = spec["selector"].get("matchLabels") or {}
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    if not wanted:
        yield "spec.selector: Invalid value: empty selector is invalid for statefulset"
    if not wanted.items() <= labels.items():
        yield "spec.template.metadata.labels: Invalid value: `selector` does not match template `labels`"
    if spec.get("replicas", 1) < 0:
        yield "spec.replicas: Invalid value: must be greater than or equal to 0"
    if spec.get("podManagementPolicy", "Parallel") not in ("OrderedReady", "Parallel"):
        yield "spec.podManagementPolicy: Invalid value"
    yield from _template(spec["template"], "spec.template")


def _monarch_mesh(body: Object) -> Iterator[str]:
    yield from _port(body["spec"]["port"], "spec.port")
    yield from _template(body["spec"]["podTemplate"], "spec.podTemplate")


def _template(template: Object, where: str) -> Iterator[str]:
    yield from _labels((template.get("metadata") or {}).get("labels"), f"{where}.metadata.labels")
    spec = template.get("spec")
    if spec is None:
        yield f"{where}.spec: Required value"
        return
    if spec.get("restartPolicy", "Always") != "Always":
        yield f'{where}.spec.restartPolicy: Unsupported value: "{spec["restartPolicy"]}": supported values: "Always"'
    if spec.get("activeDeadlineSeconds") is not None:
        yield f"{where}.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in StatefulSet is not Supported"
    yield from pod_spec(spec, f"{where}.spec")


def pod_spec(spec: Object, where: str = "spec") -> Iterator[str]:
    """Says which rules the spec of a pod breaks."""
    containers = [*(spec.get("initContainers") or []), *spec["containers"]]
    if not spec["containers"]:
        yield f"{where}.containers: Required value"
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        yield f"{where}.terminationGracePeriodSeconds: Invalid value: must be greater than or equal to 0"
    volumes = [volume["name"] for volume in spec.get("volumes") or []]
    for kind, names in (("containers", [of["name"] for of in containers]), ("volumes", volumes)):
        yield from (f'{where}.{kind}: Duplicate value: "{name}"' for name in set(names) if names.count(name) > 1)
        yield from (
            f'{where}.{kind}.name: Invalid value: "{of}"' for of in names if not _LABEL.match(of) or len(of) > _SHORT
        )
    for volume in spec.get("volumes") or []:
        if len(volume) != 2:
            yield f"{where}.volumes: {volume['name']}: must specify one volume type"
        size = (volume.get("emptyDir") or {}).get("sizeLimit")
        if size is not None and not _QUANTITY.match(size):
            raise Malformed(f"quantities must match the regular expression, {where}.volumes.sizeLimit is {size!r}")
    for container in containers:
        yield from _container(container, volumes, f"{where}.containers[{container['name']}]")


def _container(container: Object, volumes: list[str], where: str) -> Iterator[str]:
    image = container.get("image") or ""
    if not image or image != image.strip():
        yield f"{where}.image: {'Invalid value: must not have whitespace' if image else 'Required value'}"
    for variable in container.get("env") or []:
        if not _VARIABLE.match(variable["name"]):
            yield f'{where}.env.name: Invalid value: "{variable["name"]}"'
        if variable.get("value") and variable.get("valueFrom"):
            yield f"{where}.env.valueFrom: Invalid value: may not be specified when `value` is not empty"
    mounts = container.get("volumeMounts") or []
    yield from (f'{where}.volumeMounts: Not found: "{of["name"]}"' for of in mounts if of["name"] not in volumes)
    paths = [of["mountPath"] for of in mounts]
    yield from (f'{where}.volumeMounts: must be unique: "{path}"' for path in set(paths) if paths.count(path) > 1)
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for name, amount in [*requests.items(), *limits.items()]:
        if not _QUANTITY.match(amount):
            raise Malformed(f"quantities must match the regular expression, {where}.resources.{name} is {amount!r}")
        yield from _key(name, f"{where}.resources")
        if amount.startswith("-"):
            yield f'{where}.resources[{name}]: Invalid value: "{amount}": must be greater than or equal to 0'
        if "/" in name and requests.get(name, limits.get(name)) != limits.get(name):  # an extended resource
            yield f"{where}.resources[{name}]: Invalid value: must be equal to {name} limit"


_RULES = {
    "Secret": _secret,
    "Service": _service,
    "StatefulSet": _stateful_set,
    "MonarchMesh": _monarch_mesh,
    "Pod": lambda body: pod_spec(body["spec"]),
}
