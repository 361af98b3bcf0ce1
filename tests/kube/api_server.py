"""A Kubernetes API server, over HTTPS: keeps objects and says what real ones say. What acts on the objects, the controllers
and the kubelet, is in cluster.py.

It has namespaces, objects of any kind (create, read, list, patch, delete, owners), pods' logs and port forwards, asks for
a bearer token, and refuses what a test tells it to refuse. Watches are not served: nothing here uses them.
"""

from __future__ import annotations

import base64
import itertools
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from monarch.tools.certs import make_certificates
from tests.kube import port_forward

Object = dict[str, Any]
Key = tuple[str, str, str]  # API version, plural, namespace

CORE, APPS, OPERATOR = "v1", "apps/v1", "monarch.pytorch.org/v1alpha1"
KINDS = {
    (CORE, "pods"): "Pod",
    (CORE, "secrets"): "Secret",
    (CORE, "services"): "Service",
    (CORE, "events"): "Event",
    (APPS, "statefulsets"): "StatefulSet",
    (OPERATOR, "monarchmeshes"): "MonarchMesh",
}


class Refused(Exception):
    """An answer that is an error: a Status object."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }


class Store:
    """The objects. `changed` is told of each change, outside the lock."""

    def __init__(self, namespaces: tuple[str, ...]) -> None:
        self.namespaces = set(namespaces)
        self.served = set(KINDS)
        self.changed: Callable[[], None] = lambda: None
        self.lock = threading.RLock()
        self._objects: dict[Key, dict[str, Object]] = {}
        self._numbers = itertools.count(1)

    def list(self, version: str, plural: str, namespace: str, labels: str = "", fields: str = "") -> list[Object]:
        with self.lock:
            found = list(self._objects.get((version, plural, namespace), {}).values())
            found = [item for item in found if _selected(item["metadata"].get("labels") or {}, labels)]
            return [json.loads(json.dumps(item)) for item in found if _selected(_Fields(item), fields)]

    def find(self, version: str, plural: str, namespace: str, name: str) -> Object | None:
        with self.lock:
            found = self._objects.get((version, plural, namespace), {}).get(name)
            return None if found is None else json.loads(json.dumps(found))

    def read(self, version: str, plural: str, namespace: str, name: str) -> Object:
        found = self.find(version, plural, namespace, name)
        if found is None:
            raise Refused(404, "NotFound", f'{plural} "{name}" not found')
        return found

    def create(self, version: str, plural: str, namespace: str, body: Object) -> Object:
        with self.lock:
            if namespace not in self.namespaces:
                raise Refused(404, "NotFound", f'namespaces "{namespace}" not found')
            name = body["metadata"]["name"]
            kept = self._objects.setdefault((version, plural, namespace), {})
            if name in kept:
                raise Refused(409, "AlreadyExists", f'{plural} "{name}" already exists')
            number = next(self._numbers)
            body = json.loads(json.dumps(body))
            body["metadata"] |= {
                "namespace": namespace,
                "uid": f"uid-{number}",
                "resourceVersion": str(number),
                "creationTimestamp": f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z",
            }
            kept[name] = {"kind": KINDS[version, plural], "apiVersion": version} | body
            made: Object = json.loads(json.dumps(kept[name]))
        self.changed()
        return made

    def patch(self, version: str, plural: str, namespace: str, name: str, change: Object) -> Object:
        with self.lock:
            found = self.read(version, plural, namespace, name)
            if plural == "secrets" and found.get("immutable") and change.get("data") != found.get("data"):
                raise Refused(422, "Invalid", f'Secret "{name}" is invalid: data: Forbidden: field is immutable')
            merged = _merged(found, change)
            merged["metadata"]["resourceVersion"] = str(next(self._numbers))
            self._objects[version, plural, namespace][name] = merged
        if merged != found:
            self.changed()
        return merged

    def delete(self, version: str, plural: str, namespace: str, name: str) -> Object:
        """Deletes it: what it owned alone goes with it, as the garbage collector does."""
        with self.lock:
            gone = self.read(version, plural, namespace, name)
            del self._objects[version, plural, namespace][name]
            uid = gone["metadata"]["uid"]
            owned = [
                (key, item["metadata"]["name"])
                for key, items in self._objects.items()
                for item in items.values()
                if any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences") or [])
            ]
            for key, each in owned:
                if each in self._objects[key]:
                    self.delete(*key, each)
        self.changed()
        return gone

    def everything(self) -> list[str]:
        """Kind and name of all that is there."""
        with self.lock:
            return sorted(f"{item['kind']} {name}" for items in self._objects.values() for name, item in items.items())


class ApiServer:
    """Serves a Store on a port of this machine until `close`."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.tokens = {"right"}
        self.requests: list[tuple[str, str]] = []  # verb and path, as they came
        self.refuse: dict[tuple[str, str], Refused] = {}  # by HTTP verb and plural
        self.log_of: Callable[[str], str] = lambda pod: ""
        self.port_of: Callable[[str, int], tuple[str, int]] = lambda pod, port: ("127.0.0.1", port)
        make_certificates(folder / "certs", ("127.0.0.1",))
        self._certs = folder / "certs"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certs / "host.pem", self._certs / "host-key.pem")
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.server.handle_error = lambda *connection: (
            None
        )  # a client that went away, or does not trust our certificate
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def kubeconfig(self, file: Path, user: Mapping[str, Any] | None = None) -> Path:
        """Writes one whose current context is this server."""
        authority = base64.b64encode((self._certs / "ca.pem").read_bytes()).decode()
        cluster = {"server": self.url, "certificate-authority-data": authority}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": "me", "user": dict(user or {"token": "right"})}],
        }
        file.write_text(json.dumps(config))
        return file

    @property
    def authority(self) -> str:
        return str(self._certs / "ca.pem")

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


def _handler(api: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60

        def log_message(self, *arguments: Any) -> None:
            pass

        def _answer(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length) or b"null")
            url = urlsplit(self.path)
            api.requests.append((self.command, url.path))
            try:
                if self.headers.get("authorization", "").removeprefix("Bearer ") not in api.tokens:
                    raise Refused(401, "Unauthorized", "Unauthorized")
                query = {key: values[0] for key, values in parse_qs(url.query).items()}
                code, answer = self._route([part for part in url.path.split("/") if part], query, body)
            except Refused as refused:
                code, answer = refused.code, refused.body
            if answer is not None:
                data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = _answer

        def _route(self, path: list[str], query: dict[str, str], body: Any) -> tuple[int, Any]:
            version, rest = (CORE, path[2:]) if path[0] == "api" else ("/".join(path[1:3]), path[3:])
            if not rest:
                return 200, self._resources(version)
            if rest[0] != "namespaces" or (version, rest[2]) not in api.store.served:
                raise Refused(404, "NotFound", "the server could not find the requested resource")
            _, namespace, plural, *names = rest
            if (refused := api.refuse.get((self.command, plural))) is not None:
                raise refused
            at = (version, plural, namespace)
            if len(names) == 2:
                return self._below(*at, *names, query)
            match self.command:
                case "GET" if names:
                    return 200, api.store.read(*at, names[0])
                case "GET":
                    found = api.store.list(*at, query.get("labelSelector", ""), query.get("fieldSelector", ""))
                    return 200, {"kind": "List", "apiVersion": version, "metadata": {}, "items": found}
                case "POST":
                    return 201, api.store.create(*at, body)
                case "PATCH":
                    assert self.headers["content-type"] == "application/merge-patch+json"
                    return 200, api.store.patch(*at, names[0], body)
                case _:
                    api.store.delete(*at, names[0])
                    return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}

        def _resources(self, version: str) -> Object:
            found = [{"name": plural, "kind": kind} for (of, plural), kind in KINDS.items() if of == version]
            found = [item for item in found if (version, item["name"]) in api.store.served]
            if not found:
                raise Refused(404, "NotFound", "404 page not found")
            return {"kind": "APIResourceList", "groupVersion": version, "resources": found}

        def _below(
            self, version: str, plural: str, namespace: str, name: str, what: str, query: dict[str, str]
        ) -> tuple[int, Any]:
            if (refused := api.refuse.get((self.command, what))) is not None:
                raise refused
            pod = api.store.read(version, plural, namespace, name)
            if what == "log":
                return 200, api.log_of(pod["metadata"]["name"])
            assert what == "portforward"
            port = int(query["ports"])
            port_forward.serve(self, port, api.port_of(name, port))
            self.close_connection = True
            return 101, None

    return Handler


class _Fields(Mapping[str, str]):
    """`involvedObject.name` and the like, as field selectors name them."""

    def __init__(self, item: Object) -> None:
        self._item = item

    def __getitem__(self, path: str) -> str:
        found: Any = self._item
        for key in path.split("."):
            found = found[key]
        return str(found)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _selected(values: Mapping[str, str], selector: str) -> bool:
    wanted = [term.partition("=") for term in selector.split(",") if term]
    return all(values.get(key) == value.lstrip("=") for key, _, value in wanted)


def _merged(found: Any, change: Any) -> Any:
    """RFC 7386."""
    if not isinstance(change, dict):
        return change
    merged = dict(found) if isinstance(found, dict) else {}
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged
