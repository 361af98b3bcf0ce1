"""One namespace of a cluster, through the official client. What cannot be done raises ClusterError, a sentence."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from monarch._linux.locks import RLock
from monarch.job.kubernetes.api_errors import refusal, unreachable
from monarch.job.kubernetes.kube_config import Access
from monarch.job.kubernetes.manifests import JOB_LABEL, KINDS, MONARCH_MESH, SECRET, SERVICE, Manifest, ResourceKind
from monarch.job.kubernetes.pods import within
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
_UNAUTHORIZED = 401
_GONE = 410
_LOG_LINES = 5
_PAGE = 500  # pods that are listed at once, as kubectl does
_MOST_PODS = 100_000
_TRIES = 5  # of a change that others make as well
_RENEWED = 60.0  # seconds for which credentials that were read again are not read again


class ClusterError(SchedulerError):
    """The API server refused, or was not reached. `status` is that of HTTP, None when there was no answer. `retry_after`:
    seconds for which it wants to be left alone."""

    def __init__(self, text: str, status: int | None, retry_after: float = 0.0, certificates: bool = False) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after = retry_after
        self._certificates = certificates

    @property
    def passing(self) -> bool:
        """True if the same may work a little later."""
        if self.status is None:
            return not self._certificates
        return self.status == _BUSY or self.status >= _SERVER

    @property
    def stale(self) -> bool:
        """True if credentials or certificates may have been replaced since they were read."""
        return self.status == _UNAUTHORIZED or self._certificates


class Cluster:
    """Answers are the API's own JSON: the client's typed objects differ between its versions, and take long to make."""

    def __init__(self, access: Access, namespace: str) -> None:
        self.namespace = namespace
        self.answered = False  # whether the API server has ever
        self._renewed = -_RENEWED
        self._lock = RLock()
        self._connect(access)

    def _connect(self, access: Access) -> None:
        from kubernetes import client

        self.access = access
        self._client = client.ApiClient(access.configuration)
        # The only way to say how a patch is meant that all versions of the client have.
        self._patching = client.ApiClient(access.configuration, "Content-Type", "application/json-patch+json")
        for used in (self._client, self._patching):
            used.rest_client.pool_manager.request = _bounded(used.rest_client.pool_manager.request)

    def close(self) -> None:
        for used in (self._client, self._patching):
            used.rest_client.pool_manager.clear()

    # --- objects

    def create(self, manifest: Manifest) -> Mapping[str, Any]:
        """Makes it, or changes the one of that name to be like it."""
        kind, name = KINDS[manifest["kind"]], manifest["metadata"]["name"]
        for left in reversed(range(_TRIES)):
            try:
                return self._ask(
                    f"create {self._called(kind, name)}", *_method("create", kind), **self._placed(kind), body=manifest
                )
            except ClusterError as error:
                if error.status != _CONFLICT:
                    raise
                refused = error
            found = self.read(kind, name)
            if found is not None and _job(found) == manifest["metadata"]["labels"][JOB_LABEL]:
                return found  # made by an attempt whose answer was lost
            if found is None:  # has just gone
                continue
            if left == _TRIES - 1:
                job_logger().warning(
                    "%s was there already: it is changed, and its pods are replaced", self._called(kind, name)
                )
            try:
                return self._ask(
                    f"change {self._called(kind, name)}",
                    *_method("patch", kind),
                    **self._placed(kind),
                    name=name,
                    body=_takeover(kind, manifest),
                )
            except ClusterError as error:
                if error.status not in (_CONFLICT, _NOT_FOUND):
                    raise
                refused = error
        raise refused

    def read(self, kind: ResourceKind, name: str) -> Mapping[str, Any] | None:
        """Returns the object; None when there is none."""
        try:
            doing = f"read {self._called(kind, name)}"
            return self._ask(doing, *_method("get" if kind.group else "read", kind), **self._placed(kind), name=name)
        except ClusterError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def delete(self, kind: ResourceKind, name: str, job: str) -> bool:
        """False when there is none, or it is not this job's: another one has taken it over. What it owns goes after it."""
        found = self.read(kind, name)
        if found is None or _job(found) != job:
            return False
        try:
            self._ask(
                f"delete {self._called(kind, name)}",
                *_method("delete", kind),
                **self._placed(kind),
                name=name,
                body={"propagationPolicy": "Background", "preconditions": {"uid": within(found, "metadata", "uid")}},
            )
        except ClusterError as error:
            if error.status in (_NOT_FOUND, _CONFLICT):  # it has gone meanwhile; another one of the name may be there
                return False
            raise
        return True

    def secret(self, name: str, key: str) -> str | None:
        """Returns what a Secret holds under this key."""
        found = self.read(SECRET, name)
        value = within(found, "data", key)
        try:
            return base64.b64decode(value).decode() if isinstance(value, str) else None
        except ValueError:
            raise ClusterError(f"Secret {name} in namespace {self.namespace} has no text under {key!r}", None) from None

    def has_operator(self) -> bool:
        """True if the API serves MonarchMesh."""
        try:
            found = self._ask(
                f"ask for {MONARCH_MESH.api_version}",
                "CustomObjectsApi",
                "get_api_resources",
                group=MONARCH_MESH.group,
                version=MONARCH_MESH.version,
            )
        except ClusterError as error:
            # Who may not look it up is not allowed to use it either.
            if error.status in (_NOT_FOUND, _FORBIDDEN):
                return False
            raise
        served = found.get("resources")
        return isinstance(served, list) and any(within(of, "name") == MONARCH_MESH.plural for of in served)

    # --- pods

    def pods(self, selector: str) -> list[Mapping[str, Any]]:
        """Page by page; whole, when what was changed meanwhile is more than the API server remembers."""
        try:
            return self._listed(selector, _PAGE)
        except ClusterError as error:
            if error.status != _GONE:
                raise
            return self._listed(selector, None)

    def _listed(self, selector: str, at_once: int | None) -> list[Mapping[str, Any]]:
        doing = f"list pods {selector} in namespace {self.namespace}"
        asked: dict[str, Any] = {"namespace": self.namespace, "label_selector": selector}
        if at_once is not None:
            asked["limit"] = at_once
        pods: list[Mapping[str, Any]] = []
        while True:
            found = self._ask(doing, "CoreV1Api", "list_namespaced_pod", **asked)
            page, told = found.get("items") or [], found.get("metadata") or {}
            if (
                not isinstance(page, list)
                or not all(isinstance(pod, dict) for pod in page)
                or not isinstance(told, dict)
            ):
                raise ClusterError(f"cannot {doing}: {self.access.where} gave no list of pods", None)
            pods += page
            if not told.get("continue"):
                return pods
            if not page or len(pods) > _MOST_PODS:
                raise ClusterError(f"cannot {doing}: {self.access.where} gave a list without an end", None)
            asked["_continue"] = told["continue"]

    def last_words(self, pod: str, container: str) -> str:
        """The end of what a container wrote before it crashed; "" when that cannot be had."""
        for previous in (True, False):
            try:
                text = self._raw(
                    "read its log",
                    "CoreV1Api",
                    "read_namespaced_pod_log",
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
                "list events", "CoreV1Api", "list_namespaced_event", namespace=self.namespace, field_selector=about
            )
        except ClusterError:
            return ""
        events = found.get("items")
        if not isinstance(events, list) or not events:
            return ""
        last = max(events, key=lambda event: str(within(event, "lastTimestamp") or ""))
        return " ".join(str(within(last, "message") or "").split())

    # --- one request

    def _placed(self, kind: ResourceKind) -> dict[str, str]:
        placed = {"namespace": self.namespace}
        if kind.group:
            placed |= {"group": kind.group, "version": kind.version, "plural": kind.plural}
        return placed

    def _called(self, kind: ResourceKind, name: str) -> str:
        return f"{kind.name} {name} in namespace {self.namespace}"

    def _ask(self, doing: str, api: str, method: str, **arguments: Any) -> dict[str, Any]:
        try:
            found = json.loads(self._raw(doing, api, method, **arguments))
        except (ValueError, RecursionError) as error:
            why = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
            raise ClusterError(f"cannot {doing}: {self.access.where} gave no JSON: {why}", None) from None
        if not isinstance(found, dict):
            raise ClusterError(f"cannot {doing}: {self.access.where} gave no object, but {type(found).__name__}", None)
        return found

    def _raw(self, doing: str, api: str, method: str, **arguments: Any) -> bytes:
        with self._lock:  # the client's configuration is not made for several threads
            try:
                return self._once(doing, api, method, arguments)
            except ClusterError as error:
                now = time.monotonic()
                if not error.stale or now - self._renewed < _RENEWED:
                    raise
                self._renewed = now
            self.close()
            self._connect(self.access.renewed())
            return self._once(doing, api, method, arguments)

    def _once(self, doing: str, api: str, method: str, arguments: Mapping[str, Any]) -> bytes:
        from kubernetes import client
        from urllib3.exceptions import HTTPError

        where = self.access.where
        used = self._patching if method.startswith("patch") else self._client
        request = getattr(getattr(client, api)(used), method)
        try:
            data: bytes = request(**arguments, _preload_content=False, _request_timeout=TIME_LIMIT).data
            self.answered = True
            return data
        except client.ApiException as error:
            if error.status:
                self.answered = True
                text = refusal(doing, where, error.status, error.reason, error.body)
                told = (error.status, _retry_after(error.headers), False)
            else:  # TLS, among others
                text = unreachable(doing, where, ValueError(error.reason))
                told = (None, 0.0, "certificate" in str(error.reason).lower())
        except (HTTPError, OSError) as error:
            text, told = unreachable(doing, where, error), (None, 0.0, False)
        # Without what it came from, which has the whole answer.
        raise ClusterError(self.access.without_credentials(text), *told)


def _job(found: Mapping[str, Any]) -> str:
    """Returns the job that an object belongs to; "" for what others made."""
    return str(within(found, "metadata", "labels", JOB_LABEL) or "")


def _method(verb: str, kind: ResourceKind) -> tuple[str, str]:
    """Returns what the official client calls it: a class, and a method of it."""
    if kind.group:
        return "CustomObjectsApi", f"{verb}_namespaced_custom_object"
    return "CoreV1Api", f"{verb}_namespaced_{kind.name.lower()}"


def _takeover(kind: ResourceKind, manifest: Manifest) -> list[Manifest]:
    """Returns the change that makes the object of another like this one: a JSON patch, of which nothing old is left."""
    metadata = manifest["metadata"]
    parts = {f"/metadata/{key}": metadata.get(key, {}) for key in ("labels", "annotations")}
    parts |= {f"/metadata/{key}": metadata[key] for key in ("ownerReferences",) if key in metadata}
    for key, value in manifest.items():
        if kind is SERVICE and key == "spec":  # its address cannot be changed
            parts |= {f"/spec/{name}": item for name, item in value.items() if name != "clusterIP"}
        elif key not in ("apiVersion", "kind", "metadata"):
            parts[f"/{key}"] = value
    return [{"op": "add", "path": path, "value": value} for path, value in parts.items()]


def _retry_after(headers: Any) -> float:
    """Returns the seconds that an answer says; 0 for a date, which the API server does not send."""
    text = str((headers or {}).get("Retry-After", ""))
    return float(text) if text.isascii() and text.isdigit() else 0.0


def _bounded(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `ask`, which makes a request by urllib3, with answers that are read whole, and end: what a server says that is
    none fills no memory and holds nobody up."""
    import urllib3

    def request(*args: Any, **kwargs: Any) -> Any:
        # What newer versions of urllib3 do by themselves.
        answer = ask(*args, redirect=False, enforce_content_length=True, **kwargs)
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
