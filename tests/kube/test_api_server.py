"""The API server of the tests says what a real one says: to a client that asks it as kubectl would."""

from __future__ import annotations

import json
import ssl
from http.client import HTTPSConnection
from typing import Any

from tests.kube.api_server import ApiServer
from tests.kube.lab import NAMESPACE

SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
JSON = "application/json-patch+json"


def ask(api: ApiServer, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, str]:
    """Returns the status, and the message of a refusal."""
    trusted = ssl.create_default_context(cafile=str(api.authority))
    connection = HTTPSConnection(api.url.removeprefix("https://"), context=trusted, timeout=60)
    try:
        headers = {"Authorization": "Bearer right", "Content-Type": kind}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()).get("message", "")
    finally:
        connection.close()


def secret(**metadata: Any) -> Any:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"} | metadata, "data": {"a": "eA=="}}


def test_what_is_sent_is_checked_before_it_is_stored(api: ApiServer) -> None:
    for body, status, words in (
        (secret() | {"datum": {}}, 400, 'strict decoding error: unknown field "datum"'),
        (secret() | {"data": {"a": 1}}, 400, "cannot unmarshal int into field data.a"),
        (secret(name="S"), 422, 'Secret "S" is invalid: metadata.name'),
        (secret() | {"kind": "Pod"}, 400, "is no Secret of v1"),
    ):
        code, message = ask(api, "POST", SECRETS, body)
        assert (code, words in message) == (status, True), message
    assert ask(api, "POST", f"{SECRETS}?watch=1", secret())[0] == 400
    assert api.store.everything() == []
    assert ask(api, "POST", SECRETS, secret())[0] == 201
    assert ask(api, "POST", SECRETS, secret()) == (409, 'secrets "s" already exists')


def test_a_patch_and_a_deletion_are_checked(api: ApiServer) -> None:
    api.store.create("v1", "secrets", NAMESPACE, secret())
    path = f"{SECRETS}/s"
    add = [{"op": "add", "path": "/metadata/labels", "value": {"x/y": "z"}}]
    assert ask(api, "PATCH", path, add)[0] == ask(api, "PATCH", path, {"data": {}}, JSON)[0] == 415
    assert ask(api, "PATCH", path, add, JSON)[0] == 200
    assert ask(api, "PATCH", path, [{"op": "add", "path": "/what", "value": "t"}], JSON)[0] == 400
    assert ask(api, "PATCH", path, [{"op": "add", "path": "/type", "value": "t"}], JSON)[0] == 422
    assert ask(api, "DELETE", path, {"preconditions": {"uid": "another"}})[0] == 409
    assert ask(api, "DELETE", path, {"unknown": 1})[0] == 400
    assert api.store.read("v1", "secrets", NAMESPACE, "s")["metadata"]["labels"] == {"x/y": "z"}
