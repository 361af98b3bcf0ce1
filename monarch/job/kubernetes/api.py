"""One namespace of a cluster, through the official client. What cannot be done raises ClusterError, a sentence."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from monarch.job.kubernetes.api_errors import refusal, unreachable
from monarch.job.kubernetes.kube_config import Access
from monarch.job.kubernetes.manifests import KINDS, MONARCH_MESH, SECRET, SERVICE, Manifest, ResourceKind
from monarch.job.progress import job_logger
from monarch.job.scheduled import SchedulerError

TIME_LIMIT = (10.0, 30.0)  # seconds for connecting, and for each piece of an answer
_WHOLE = 120.0  # seconds for all of it
_LARGEST = 64 << 20  # bytes of an answer; ten thousand pods
_PIECE = 1 << 16
_OF_THE_WIRE = ("content-encoding", "content-length", "transfer-encoding")  # not of what was read and unpacked
_CONFLICT = 409
_BUSY = 429
_SERVER = 500
_NOT_FOUND = 404
_FORBIDDEN = 403
_LOG_LINES = 5


class ClusterError(SchedulerError):
    """The API server refused, or was not reached. `status` is that of HTTP, None when there was no answer."""

    def __init__(self, text: str, status: int | None) -> None:
        super().__init__(text)
        self.status = status

    @property
    def passing(self) -> bool:
        """True if the same may work a little later."""
        return self.status is None or self.status == _BUSY or self.status >= _SERVER


class Cluster:
    """Answers are the API's own JSON: the client's typed objects differ between its versions, and take long to make."""

    def __init__(self, access: Access, namespace: str) -> None:
        from kubernetes import client

        self.access = access
        self.namespace = namespace
        self._client = client.ApiClient(access.configuration)
        # The only way to say how a patch is meant that all versions of the client have.
        self._merging = client.ApiClient(access.configuration, "Content-Type", "application/merge-patch+json")
        for used in (self._client, self._merging):
            used.rest_client.pool_manager.request = _bounded(used.rest_client.pool_manager.request)
        self._core = client.CoreV1Api(self._client)
        self._custom = client.CustomObjectsApi(self._client)
        self._lock = threading.Lock()

    def close(self) -> None:
        for used in (self._client, self._merging):
            used.rest_client.pool_manager.clear()

    # --- objects

    def create(self, manifest: Manifest) -> Mapping[str, Any]:
        """Makes it, or changes the one of that name to be like it."""
        kind, name = KINDS[manifest["kind"]], manifest["metadata"]["name"]
        doing = f"create {self._called(kind, name)}"
        try:
            return self._ask(doing, self._verb("create", kind), **self._placed(kind), body=manifest)
        except ClusterError as error:
            if error.status != _CONFLICT:
                raise
        job_logger().warning("%s was there already: it is changed, and its pods are replaced", self._called(kind, name))
        changed = {key: value for key, value in manifest.items() if not (kind is SERVICE and key == "spec")}
        return self._ask(
            f"change {self._called(kind, name)}",
            self._verb("patch", kind),
            name=name,
            **self._placed(kind),
            body=changed,
        )

    def read(self, kind: ResourceKind, name: str) -> Mapping[str, Any] | None:
        """Returns the object; None when there is none."""
        try:
            verb = "get" if kind.group else "read"
            return self._ask(
                f"read {self._called(kind, name)}", self._verb(verb, kind), name=name, **self._placed(kind)
            )
        except ClusterError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def delete(self, kind: ResourceKind, name: str) -> bool:
        """False when there is none. What it owns goes after it."""
        verb = self._verb("delete", kind)
        try:
            self._ask(
                f"delete {self._called(kind, name)}",
                verb,
                name=name,
                **self._placed(kind),
                propagation_policy="Background",
            )
        except ClusterError as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        return True

    def secret(self, name: str, key: str) -> str | None:
        """Returns what a Secret holds under this key."""
        found = self.read(SECRET, name)
        value = ((found or {}).get("data") or {}).get(key)
        return None if value is None else base64.b64decode(value).decode()

    def has_operator(self) -> bool:
        """True if the API serves MonarchMesh."""
        try:
            found = self._ask(
                f"ask for {MONARCH_MESH.api_version}",
                self._custom.get_api_resources,
                group=MONARCH_MESH.group,
                version=MONARCH_MESH.version,
            )
        except ClusterError as error:
            # Who may not look it up is not allowed to use it either.
            if error.status in (_NOT_FOUND, _FORBIDDEN):
                return False
            raise
        return any(resource.get("name") == MONARCH_MESH.plural for resource in found.get("resources") or [])

    # --- pods

    def pods(self, selector: str) -> list[Mapping[str, Any]]:
        found = self._ask(
            f"list pods {selector} in namespace {self.namespace}",
            self._core.list_namespaced_pod,
            namespace=self.namespace,
            label_selector=selector,
        )
        return list(found.get("items") or [])

    def last_words(self, pod: str, container: str) -> str:
        """The end of what a container wrote before it crashed; "" when that cannot be had."""
        for previous in (True, False):
            try:
                text = self._raw(
                    "read its log",
                    self._core.read_namespaced_pod_log,
                    name=pod,
                    namespace=self.namespace,
                    container=container,
                    previous=previous,
                    tail_lines=_LOG_LINES,
                )
            except ClusterError:
                continue
            if text.strip():
                return text.decode(errors="replace").strip()
        return ""

    def warning(self, kind: ResourceKind, name: str) -> str:
        """The last warning that was issued about an object: why it could not make pods. "" when there is none, and when we
        may not look."""
        about = f"involvedObject.kind={kind.name},involvedObject.name={name},type=Warning"
        try:
            found = self._ask(
                "list events", self._core.list_namespaced_event, namespace=self.namespace, field_selector=about
            )
        except ClusterError:
            return ""
        events = sorted(found.get("items") or [], key=lambda event: str(event.get("lastTimestamp") or ""))
        return " ".join(str(events[-1].get("message", "")).split()) if events else ""

    # --- one request

    def _verb(self, verb: str, kind: ResourceKind) -> Any:
        from kubernetes import client

        used = self._merging if verb == "patch" else self._client
        if kind.group:
            return getattr(client.CustomObjectsApi(used), f"{verb}_namespaced_custom_object")
        return getattr(client.CoreV1Api(used), f"{verb}_namespaced_{kind.name.lower()}")

    def _placed(self, kind: ResourceKind) -> dict[str, str]:
        placed = {"namespace": self.namespace}
        if kind.group:
            placed |= {"group": kind.group, "version": kind.version, "plural": kind.plural}
        return placed

    def _called(self, kind: ResourceKind, name: str) -> str:
        return f"{kind.name} {name} in namespace {self.namespace}"

    def _ask(self, doing: str, request: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
        try:
            found = json.loads(self._raw(doing, request, **arguments))
        except (ValueError, RecursionError) as error:
            why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
            raise ClusterError(f"cannot {doing}: {self.access.where} gave no JSON: {why}", None) from None
        if not isinstance(found, dict):
            raise ClusterError(f"cannot {doing}: {self.access.where} gave no object, but {type(found).__name__}", None)
        return found

    def _raw(self, doing: str, request: Callable[..., Any], **arguments: Any) -> bytes:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        where = self.access.where
        try:
            with self._lock:  # the client's configuration is not made for several threads
                answer = request(**arguments, _preload_content=False, _request_timeout=TIME_LIMIT)
                data: bytes = answer.data
        except ApiException as error:
            if not error.status:  # TLS, among others
                raise ClusterError(unreachable(doing, where, ValueError(error.reason)), None) from error
            text = refusal(doing, where, error.status, error.reason, error.body)
            raise ClusterError(text, error.status) from error
        except (HTTPError, OSError) as error:
            raise ClusterError(unreachable(doing, where, error), None) from error
        return data


def _bounded(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `ask`, which makes a request by urllib3, with answers that are read whole, and end: what a server says that is
    none fills no memory and holds nobody up."""
    import urllib3

    def request(*args: Any, **kwargs: Any) -> Any:
        answer = ask(*args, **kwargs)
        try:
            data = _read(answer)
        except BaseException:
            answer.close()
            raise
        answer.release_conn()
        plain = {name: value for name, value in answer.headers.items() if name.lower() not in _OF_THE_WIRE}
        # From a file: of an empty `bytes` urllib3 makes no body at all.
        return urllib3.HTTPResponse(io.BytesIO(data), headers=plain, status=answer.status, reason=answer.reason)

    return request


def _read(answer: Any) -> bytes:
    """Reads an answer of urllib3. ConnectionError when it is too large, or comes too slowly."""
    data = bytearray()
    until = time.monotonic() + _WHOLE
    read = getattr(
        answer, "read1", answer.read
    )  # urllib3 before 2.1 has the latter alone, which waits for the whole piece
    while piece := read(_PIECE, decode_content=True):
        data += piece
        if len(data) > _LARGEST:
            raise ConnectionError(f"the answer has more than {_LARGEST:,} bytes")
        if time.monotonic() > until:
            raise ConnectionError(f"the answer was not there after {_WHOLE:g} s")
    return bytes(data)
