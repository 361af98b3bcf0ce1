"""The API server of the tests says what a real one says: to a client that asks it as kubectl would."""

from __future__ import annotations

import json
import ssl
from http.client import HTTPSConnection
from typing import Any

import pytest

from tests.kube.api_server import ApiServer
from tests.kube.lab import NAMESPACE

SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
MERGE, JSON = "application/merge-patch+json", "application/json-patch+json"


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


def test_objects_are_checked_before_they_are_stored(api: ApiServer) -> None:
    for body, status, words in (
        (secret() | {"datum": {}}, 400, 'strict decoding error: unknown field "datum"'),
        (secret() | {"data": {"a": 1}}, 400, "cannot unmarshal int into field data.a"),
        (secret(name="S"), 422, 'Secret "S" is invalid: metadata.name'),
        (secret(namespace="other"), 400, "does not match the namespace sent"),
        (secret(resourceVersion="1"), 400, "resourceVersion should not be set"),
        (secret() | {"kind": "Pod"}, 400, "is no Secret of v1"),
    ):
        code, message = ask(api, "POST", SECRETS, body)
        assert (code, words in message) == (status, True), message
    assert ask(api, "POST", SECRETS, secret(), "application/yaml")[0] == 415
    assert api.store.everything() == []


def test_a_name_is_taken_once_and_a_dry_run_stores_nothing(api: ApiServer) -> None:
    assert ask(api, "POST", f"{SECRETS}?dryRun=All&fieldManager=me", secret())[0] == 201
    assert ask(api, "POST", f"{SECRETS}?dryRun=All", secret(name="S"))[0] == 422
    assert api.store.everything() == []
    assert ask(api, "POST", SECRETS, secret())[0] == 201
    assert ask(api, "POST", SECRETS, secret()) == (409, 'secrets "s" already exists')
    assert ask(api, "PATCH", f"{SECRETS}/s?dryRun=All", {"data": {"a": "eQ=="}}, MERGE)[0] == 200
    assert ask(api, "DELETE", f"{SECRETS}/s?dryRun=All")[0] == 200
    assert api.store.read("v1", "secrets", NAMESPACE, "s")["data"] == {"a": "eA=="}


@pytest.mark.parametrize(
    ("query", "status"),
    [("dryRun=Some", 422), ("fieldManager=" + "x" * 129, 422), ("labelselector=a", 400), ("watch=1", 400)],
)
def test_what_is_asked_in_a_query_is_checked(api: ApiServer, query: str, status: int) -> None:
    assert ask(api, "POST", f"{SECRETS}?{query}", secret())[0] == status
    assert api.store.everything() == []


def test_a_patch_has_a_form_and_may_say_which_version_it_is_of(api: ApiServer) -> None:
    made = api.store.create("v1", "secrets", NAMESPACE, secret())
    version, path = made["metadata"]["resourceVersion"], f"{SECRETS}/s"
    add = [{"op": "add", "path": "/metadata/labels", "value": {"x/y": "z"}}]
    assert ask(api, "PATCH", path, {"data": {}}, "application/json")[0] == 415
    assert ask(api, "PATCH", path, add, MERGE)[0] == 400
    assert ask(api, "PATCH", path, {"metadata": {"resourceVersion": version}}, MERGE)[0] == 200
    code, message = ask(api, "PATCH", path, {"metadata": {"resourceVersion": version}}, MERGE)
    assert code == 409 and "the object has been modified" in message
    assert ask(api, "PATCH", path, add, JSON)[0] == 200
    assert ask(api, "PATCH", path, [{"op": "remove", "path": "/metadata/labels/x~1y"}], JSON)[0] == 200
    assert ask(api, "PATCH", path, [{"op": "test", "path": "/type", "value": "t"}], JSON)[0] == 422
    assert ask(api, "PATCH", path, [{"op": "add", "path": "/what", "value": "t"}], JSON)[0] == 400
    assert ask(api, "DELETE", path, {"preconditions": {"uid": "another"}})[0] == 409
    assert ask(api, "DELETE", path, {"unknown": 1})[0] == 400
    assert api.store.read("v1", "secrets", NAMESPACE, "s")["metadata"]["labels"] == {}
