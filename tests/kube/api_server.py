"""A Kubernetes API server, over HTTPS: keeps objects and says what real ones say. What acts on the objects, the controllers
and the kubelet, is in lab.py.

It has namespaces, objects of any kind (create, read, list in pages, patch, delete, owners), pods' logs and port forwards, and
asks for a bearer token. Every object that it is given is checked as a real one checks it (schema.py), and every request: what
is asked in a query, in which form a patch is written, and, when it has a Role, whether that grants it. It refuses what a test
tells it to refuse, and loses connections. What no job asks for is refused: watches, dry runs, merge patches.
"""

from __future__ import annotations

import base64
import itertools
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from monarch.tools.certs import make_certificates
from tests.kube import port_forward, schema

Object = dict[str, Any]
Key = tuple[str, str, str]  # API version, plural, namespace
Checking = Callable[[Object], None]

CORE, APPS, OPERATOR = "v1", "apps/v1", "monarch.pytorch.org/v1alpha1"
KINDS = {
    (CORE, "pods"): "Pod",
    (CORE, "secrets"): "Secret",
    (CORE, "services"): "Service",
    (CORE, "events"): "Event",
    (APPS, "statefulsets"): "StatefulSet",
    (OPERATOR, "monarchmeshes"): "MonarchMesh",
}
Permission = tuple[str, str, str]  # API group, resource, verb
_VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
# What may be asked in a query: as much as a job does.
_QUERIES = {
    "list": {"labelSelector", "fieldSelector", "limit", "continue"},
    "log": {"container", "previous", "tailLines"},
    "portforward": {"ports"},
}


class Lost(Exception):
    """The connection is reset in the midst of the answer. `done`: what was asked has happened."""

    def __init__(self, done: bool) -> None:
        super().__init__(done)
        self.done = done


class Refused(Exception):
    """An answer that is an error: a Status object. `headers` go with it."""

    def __init__(self, code: int, reason: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.headers = headers or {}
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }


CHANGED = "the object has been modified; please apply your changes to the latest version and try again"


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
            made: Object = {"kind": KINDS[version, plural], "apiVersion": version} | body
            kept[name] = made
            made = json.loads(json.dumps(made))
        self.changed()
        return made

    def patch(
        self, version: str, plural: str, namespace: str, name: str, change: Any, check: Checking | None = None
    ) -> Object:
        """`change`: a merge patch, or a list, which is a JSON patch; `check` is asked what comes of it."""
        with self.lock:
            found = self.read(version, plural, namespace, name)
            merged = _edited(found, change) if isinstance(change, list) else _merged(found, change)
            if merged["metadata"].get("resourceVersion") != found["metadata"]["resourceVersion"]:
                raise Refused(409, "Conflict", f'Operation cannot be fulfilled on {plural} "{name}": {CHANGED}')
            schema.check_change(found["kind"], found, merged)
            if check is not None:
                check(merged)
            merged["metadata"]["resourceVersion"] = str(next(self._numbers))
            self._objects[version, plural, namespace][name] = merged
        if merged != found:
            self.changed()
        return merged

    def delete(self, version: str, plural: str, namespace: str, name: str, options: Object | None = None) -> Object:
        """Deletes it: what it owned alone goes with it, as the garbage collector does."""
        with self.lock:
            gone = self.read(version, plural, namespace, name)
            uid = gone["metadata"]["uid"]
            for key, value in ((options or {}).get("preconditions") or {}).items():
                if value is not None and value != gone["metadata"][key]:
                    raise Refused(409, "Conflict", f"Precondition failed: {key} in precondition: {value}")
            del self._objects[version, plural, namespace][name]
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
        self.folder = folder
        self.tokens = {"right"}
        self.requests: list[tuple[str, str]] = []  # verb and path, as they came
        self.refuse: dict[tuple[str, str], Refused | Lost] = {}  # by HTTP verb and plural
        # The same, each once; an Event is awaited.
        self.upset: dict[tuple[str, str], list[Refused | Lost | threading.Event]] = {}
        self.role: set[Permission] | None = None  # what is granted; None: everything
        self.page: int | None = None  # a list has at most so many objects, whatever is asked for
        self.lists: dict[str, list[Object]] = {}  # what is left of lists, by the token that continues them
        self.log_of: Callable[[str], str] = lambda pod: ""
        self.port_of: Callable[[str, int], tuple[str, int]] = lambda pod, port: ("127.0.0.1", port)
        make_certificates(folder / "certs", ("127.0.0.1",))
        self._certs = folder / "certs"
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self._certs / "host.pem", self._certs / "host-key.pem")
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.server.handle_error = lambda *connection: (
            None
        )  # a client that went away, or does not trust our certificate
        self.server.socket = self._context.wrap_socket(
            self.server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.url = f"https://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def kubeconfig(self, **user: Any) -> Path:
        """Writes one whose current context is this server."""
        file = self.folder / "kubeconfig"
        authority = base64.b64encode((self._certs / "ca.pem").read_bytes()).decode()
        cluster = {"server": self.url, "certificate-authority-data": authority}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": "me", "user": user or {"token": "right"}}],
        }
        file.write_text(json.dumps(config))
        return file

    @property
    def authority(self) -> Path:
        return self._certs / "ca.pem"

    def replace_certificates(self, folder: Path) -> None:
        """Shows others, of another authority, to who connects from now on."""
        make_certificates(folder, ("127.0.0.1",))
        self._certs = folder
        self._context.load_cert_chain(folder / "host.pem", folder / "host-key.pem")

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
            headers: Mapping[str, str] = {}
            try:
                if self.headers.get("authorization", "").partition(" ")[2] not in api.tokens:
                    raise Refused(401, "Unauthorized", "Unauthorized")
                query = {key: values[0] for key, values in parse_qs(url.query).items()}
                code, answer = self._route([part for part in url.path.split("/") if part], query, body)
            except Refused as refused:
                code, answer, headers = refused.code, refused.body, refused.headers
            except (schema.Malformed, schema.Invalid) as refused:
                code, reason = (400, "BadRequest") if isinstance(refused, schema.Malformed) else (422, "Invalid")
                answer = Refused(code, reason, str(refused)).body
            except Lost:
                self._lose()
                return
            if answer is not None:
                data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
                self.send_header("Content-Length", str(len(data)))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

        def _lose(self) -> None:
            """The beginning of an answer, then RST."""
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()

        do_GET = do_POST = do_PATCH = do_DELETE = _answer

        def _route(self, path: list[str], query: dict[str, str], body: Any) -> tuple[int, Any]:
            version, rest = (CORE, path[2:]) if path[0] == "api" else ("/".join(path[1:3]), path[3:])
            if not rest:
                return 200, self._resources(version)
            if rest[0] != "namespaces" or (version, rest[2]) not in api.store.served:
                raise Refused(404, "NotFound", "the server could not find the requested resource")
            _, namespace, plural, *names = rest
            verb = _VERBS.get(self.command) or ("get" if names else "list")
            what = names[1] if len(names) == 2 else ""
            self._check(version, namespace, plural, what, verb, query)
            upset = api.upset.get((self.command, what or plural))
            trouble = upset.pop(0) if upset else api.refuse.get((self.command, what or plural))
            if isinstance(trouble, threading.Event):
                trouble.wait()
                trouble = None
            if isinstance(trouble, Refused) or (isinstance(trouble, Lost) and not trouble.done):
                raise trouble
            at = (version, plural, namespace)
            answer = self._below(*at, names[0], what, query) if what else self._act(verb, at, names, query, body)
            if trouble is not None:
                raise trouble
            return answer

        def _check(
            self, version: str, namespace: str, plural: str, what: str, verb: str, query: dict[str, str]
        ) -> None:
            """Checks a request as such: whether it is allowed, and what is asked in its query."""
            resource = f"{plural}/{what}" if what else plural
            group = version.rpartition("/")[0]
            # Since Kubernetes 1.35 a forward by WebSocket needs what one by SPDY always did.
            for needed in ("get", "create") if what == "portforward" else (verb,):
                if api.role is not None and (group, resource, needed) not in api.role:
                    raise Refused(403, "Forbidden", forbidden(group, resource, needed, namespace))
            if unknown := query.keys() - _QUERIES.get(what or verb, set()):
                raise schema.Malformed(f"unknown in the query of {what or verb}: {sorted(unknown)}")

        def _act(self, verb: str, at: Key, names: list[str], query: dict[str, str], body: Any) -> tuple[int, Any]:
            version, plural, _ = at
            kind = KINDS[version, plural]
            sent = self.headers.get("content-type")
            if verb == "get":
                return 200, api.store.read(*at, names[0])
            if verb == "list":
                found = api.store.list(*at, query.get("labelSelector", ""), query.get("fieldSelector", ""))
                return 200, self._page(version, found, query)
            if verb == "create":
                schema.check(version, kind, body)
                return 201, api.store.create(*at, body)
            if verb == "patch":
                if sent != "application/json-patch+json" or not isinstance(body, list):
                    raise Refused(415, "UnsupportedMediaType", f"this is no JSON patch, but {sent}")
                return 200, api.store.patch(*at, names[0], body, lambda made: schema.check(version, kind, made))
            if body is not None:
                schema._typed(body, "V1DeleteOptions", "")
            api.store.delete(*at, names[0], body)
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}

        def _page(self, version: str, found: list[Object], query: dict[str, str]) -> Object:
            if "continue" in query:
                if query["continue"] not in api.lists:
                    raise Refused(410, "Expired", EXPIRED)
                found = api.lists[query["continue"]]
            limit = int(query.get("limit", 0))
            size = min(limit, api.page or limit) or len(found)
            told: Object = {"resourceVersion": "1"}
            if len(found) > size:
                told |= {"continue": f"token-{len(api.lists)}", "remainingItemCount": len(found) - size}
                api.lists[told["continue"]] = found[size:]
            return {"kind": "List", "apiVersion": version, "metadata": told, "items": found[:size]}

        def _resources(self, version: str) -> Object:
            found = [{"name": plural, "kind": kind} for (of, plural), kind in KINDS.items() if of == version]
            found = [item for item in found if (version, item["name"]) in api.store.served]
            if not found:
                raise Refused(404, "NotFound", "404 page not found")
            return {"kind": "APIResourceList", "groupVersion": version, "resources": found}

        def _below(
            self, version: str, plural: str, namespace: str, name: str, what: str, query: dict[str, str]
        ) -> tuple[int, Any]:
            pod = api.store.read(version, plural, namespace, name)
            if what == "log":
                return 200, api.log_of(pod["metadata"]["name"])
            assert what == "portforward"
            port = int(query["ports"])
            port_forward.serve(self, port, api.port_of(name, port))
            self.close_connection = True
            return 101, None

    return Handler


EXPIRED = "The provided continue parameter is too old to display a consistent list result. You must start a new list"


def forbidden(group: str, resource: str, verb: str, namespace: str) -> str:
    """Returns what is said when no rule grants it."""
    user = 'User "system:serviceaccount:research:me"'
    return (
        f'{resource.partition("/")[0]} is forbidden: {user} cannot {verb} resource "{resource}" in API group "{group}" '
        f'in the namespace "{namespace}"'
    )


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


def _edited(found: Any, operations: list[Object]) -> Any:
    """RFC 6902, as far as a job uses it: what is there no more is set anew."""
    edited = json.loads(json.dumps(found))
    for operation in operations:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        at = edited
        for part in way:
            if not isinstance(at.get(part), dict):
                raise schema.Invalid(f"the server rejected our request: no {operation['path']}")
            at = at[part]
        if operation["op"] != "add":
            raise schema.Malformed(f"a job adds, and this is {operation['op']}")
        at[last] = operation["value"]
    return edited
