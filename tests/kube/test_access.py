"""Tests of which cluster, and as whom: kubeconfigs of every kind, and what goes wrong with them."""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from monarch.job import SchedulerError
from monarch.job.kubernetes import KubeConfig
from monarch.job.kubernetes import api as api_module
from monarch.job.kubernetes.api import Cluster, ClusterError
from monarch.job.kubernetes.api_errors import api_words, forward_refused, refusal
from monarch.job.kubernetes.kube_config import KubeConfigError, access, parse_credential
from tests.kube.api_server import ApiServer
from tests.kube.lab import NAMESPACE
from tests.kube.values import job_in
from tests.support.web import served

POD = {"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {"containers": [{"image": "none", "name": "c"}]}}


def pods_through(kubeconfig: KubeConfig) -> list[Any]:
    cluster = Cluster(access(kubeconfig), NAMESPACE)
    try:
        return cluster.pods("a=b")
    finally:
        cluster.close()


def plugin_that(folder: Path, body: str) -> dict[str, Any]:
    """A credential plugin beside the kubeconfig, as a program."""
    file = folder / "plugin"
    file.write_text(f"#!{sys.executable}\nimport json, os, sys\n{body}\n")
    file.chmod(0o700)
    return {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", "interactiveMode": "Never"}


def test_a_token_in_the_file(api: ApiServer) -> None:
    api.store.create("v1", "pods", NAMESPACE, POD)
    assert [pod["metadata"]["name"] for pod in pods_through(KubeConfig.from_path(api.kubeconfig()))] == ["p"]


@pytest.mark.parametrize(
    "printed",
    ["json.dumps({'kind': 'ExecCredential', 'status': {'token': 'right'}})", "'status:\\n  token: right\\n'"],
    ids=["json", "yaml"],
)
def test_a_credential_plugin(api: ApiServer, printed: str) -> None:
    plugin = plugin_that(api.folder, f"assert os.environ['KUBERNETES_EXEC_INFO']\nprint({printed})")
    assert pods_through(KubeConfig.from_path(api.kubeconfig(exec=plugin))) == []


def test_a_token_that_expires_is_asked_for_again(api: ApiServer) -> None:
    count = api.folder / "count"
    soon = (datetime.now(UTC) + timedelta(seconds=30)).isoformat()
    plugin = plugin_that(
        api.folder,
        f"open({os.fspath(count)!r}, 'a').write('x')\n"
        f"print(json.dumps({{'status': {{'token': 'right', 'expirationTimestamp': {soon!r}}}}}))",
    )
    assert pods_through(KubeConfig.from_path(api.kubeconfig(exec=plugin))) == []
    assert len(count.read_text()) >= 2


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("sys.exit('Unable to locate credentials: run aws sso login')", "run aws sso login"),
        ("print('hello')", "printed no ExecCredential"),
        ("print('{\"status\": {}}')", "neither a token nor a certificate"),
    ],
)
def test_a_plugin_that_gives_nothing_says_why(api: ApiServer, body: str, words: str) -> None:
    kubeconfig = api.kubeconfig(exec=plugin_that(api.folder, body))
    with pytest.raises(KubeConfigError, match=words) as raised:
        access(KubeConfig.from_path(kubeconfig))
    assert str(kubeconfig) in str(raised.value)


def test_a_plugin_that_is_not_there(api: ApiServer) -> None:
    plugin = {"apiVersion": "v1", "command": "no-such-plugin", "installHint": "Install it from the cloud's page."}
    with pytest.raises(KubeConfigError, match=r"'no-such-plugin': No such file .* Install it from the cloud's page"):
        access(KubeConfig.from_path(api.kubeconfig(exec=plugin)))


def test_a_certificate_from_a_plugin_is_used() -> None:
    output = json.dumps({"status": {"clientCertificateData": "PEM 1", "clientKeyData": "PEM 2"}}).encode()
    assert set(parse_credential("p", output).as_user()) == {"client-certificate-data", "client-key-data"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot read the kubeconfig .*No such file"),
        ("", "is empty"),
        ("a: [", "is not YAML"),
        ("current-context: x\ncontexts: []\nclusters: []\n", "cannot be used: .*x"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "kubeconfig"
    if text is not None:
        file.write_text(text)
    with pytest.raises(KubeConfigError, match=words):
        access(KubeConfig.from_path(file))


def test_a_proxy_that_the_file_names_is_used(api: ApiServer) -> None:
    file = api.kubeconfig()
    config = json.loads(file.read_text())
    config["clusters"][0]["cluster"]["proxy-url"] = "http://127.0.0.1:1"
    file.write_text(json.dumps(config))
    assert access(KubeConfig.from_path(file)).configuration.proxy == "http://127.0.0.1:1"


def test_outside_a_pod_a_kubeconfig_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeConfigError, match=r"Failed to load in-cluster Kubernetes config\. .*KubeConfig\.from_path"):
        access(None)


def test_a_path_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert KubeConfig.from_path("~/.kube/config") == KubeConfig(local=Path("/home/me/.kube/config"))
    assert KubeConfig.from_path("x").out_of_cluster and not KubeConfig().out_of_cluster


# --- credentials of a process


def test_credentials_in_memory_are_not_stored(api: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    configuration = access(KubeConfig.from_path(api.kubeconfig())).configuration
    job = job_in(api, 1, kubeconfig=KubeConfig.from_config(configuration))
    logging.getLogger("monarch.job").addHandler(caplog.handler)
    try:
        content = job.dumps()
    finally:
        logging.getLogger("monarch.job").removeHandler(caplog.handler)
    assert "without its credentials" in caplog.text
    assert b"right" not in content
    stored = pickle.loads(content)
    assert repr(stored._kubeconfig.remote) == "<needs rebind>" and stored._kubeconfig.out_of_cluster
    with pytest.raises(RuntimeError, match=r"was pickled.*KubeConfig.from_path"):
        stored.apply()
    stored._rebind_connection_inputs(job)
    stored.apply()
    assert "StatefulSet trainers" in api.store.everything()
    stored.kill()
    assert api.store.everything() == []


# --- what the API server says


def test_expired_credentials(api: ApiServer) -> None:
    api.tokens.clear()
    with pytest.raises(ClusterError, match=r"401 Unauthorized: Unauthorized\. The credentials are expired") as raised:
        pods_through(KubeConfig.from_path(api.kubeconfig()))
    assert "context 'lab' of" in str(raised.value) and api.url in str(raised.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"server": "https://127.0.0.1:1"}, "Connection refused.*Check the network"),
        ({"certificate-authority-data": ""}, "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_a_server_that_cannot_be_reached(api: ApiServer, changed: dict[str, Any], words: str) -> None:
    file = api.kubeconfig()
    config = json.loads(file.read_text())
    cluster = config["clusters"][0]["cluster"] | changed
    config["clusters"][0]["cluster"] = {key: value for key, value in cluster.items() if value}
    file.write_text(json.dumps(config))
    with pytest.raises(SchedulerError, match=f"cannot be reached: .*{words}"):
        pods_through(KubeConfig.from_path(file))


def test_refusals_are_sentences_with_what_to_do() -> None:
    status = json.dumps({"kind": "Status", "message": 'pods is forbidden: User "me" cannot list resource "pods"'})
    said = refusal("list pods", "the API server https://x", 403, "Forbidden", status)
    assert said.startswith(
        'cannot list pods: the API server https://x answered 403 Forbidden: pods is forbidden: User "me"'
    )
    assert "examples/kubernetes/rbac.yaml" in said
    assert "resourcequota" in refusal("create", "x", 403, "Forbidden", '{"message": "exceeded quota: gpus"}')
    assert api_words(502, "Bad Gateway", b"<html>\n nginx</html>") == "<html> nginx</html>"
    assert api_words(500, None, "") == "no reason given"
    assert len(api_words(500, "", "x" * 5000)) < 600


def test_a_refused_forward_has_the_servers_words() -> None:
    words = 'Handshake status 403 Forbidden -+-+- {"a": 1} -+-+- {"message": "pods is forbidden"}'
    assert "answered 403 Forbidden: pods is forbidden" in forward_refused("forward a port", "x", words)
    assert "cannot be reached: timed out" in forward_refused("forward a port", "x", "timed out")


# --- a file that others may write, and a server that is none


def test_a_kubeconfig_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    """It names a program that is run."""
    file, ran = tmp_path / "kubeconfig", tmp_path / "ran"
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": [str(ran)]}}
    loaded = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": user}],
    }
    file.write_text(json.dumps(loaded))
    file.chmod(0o666)
    with pytest.raises(
        KubeConfigError, match=r"names programs to run, and somebody else may have written it: .*kubeconfig"
    ):
        access(KubeConfig.from_path(file))
    assert not ran.exists()
    file.chmod(0o600)
    with pytest.raises(KubeConfigError, match="printed no ExecCredential"):
        access(KubeConfig.from_path(file))
    assert ran.exists()


@pytest.fixture
def server() -> Iterator[tuple[Cluster, dict[str, bytes]]]:
    """A cluster whose server answers every request with `said["answer"]`."""
    kubernetes = pytest.importorskip("kubernetes")
    said: dict[str, bytes] = {}

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                self.send_response(int(said.get("status", b"200")))
                self.end_headers()
                self.wfile.write(said["answer"])
                while said.get("endless"):
                    self.wfile.write(said["endless"])
            except OSError:  # who asked has enough
                pass

    with served(Answer) as address:
        configuration = kubernetes.client.Configuration()
        configuration.host = f"http://{address}"
        cluster = Cluster(access(KubeConfig.from_config(configuration)), NAMESPACE)
        yield cluster, said
        cluster.close()
        said.clear()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"[" * 100_000, "nested too deep"),
        (b"[]", "gave no object, but list"),
        (b"<html>", "gave no JSON"),
        (b"", "gave no JSON"),
        (b"\xff\xfe", "gave no JSON"),
    ],
    ids=["deep", "a list", "a page", "nothing", "bytes"],
)
def test_a_server_that_answers_with_something_else(
    server: tuple[Cluster, dict[str, bytes]], answer: bytes, why: str
) -> None:
    cluster, said = server
    said["answer"] = answer
    with pytest.raises(ClusterError, match=f"cannot list pods a=b .*{why}"):
        cluster.pods("a=b")


@pytest.mark.parametrize("status", [b"200", b"500"])
def test_an_answer_without_an_end_is_given_up(
    server: tuple[Cluster, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch, status: bytes
) -> None:
    monkeypatch.setattr(api_module, "_LARGEST", 1 << 20)
    cluster, said = server
    said |= {"answer": b"{", "endless": b" " * 1000, "status": status}
    with pytest.raises(ClusterError, match="more than 1,048,576 bytes"):
        cluster.pods("a=b")
    said["endless"] = b""
    monkeypatch.setattr(api_module, "_WHOLE", 0.0)
    with pytest.raises(ClusterError, match="not there after 0 s"):
        cluster.pods("a=b")


def test_a_pod_that_has_said_nothing(server: tuple[Cluster, dict[str, bytes]]) -> None:
    cluster, said = server
    said["answer"] = b""
    assert cluster.last_words("trainers-0", "worker") == ""
