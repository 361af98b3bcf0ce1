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
from monarch.job.kubernetes import ImageSpec, KubeConfig, KubernetesJob, api
from monarch.job.kubernetes.api import Cluster, ClusterError
from monarch.job.kubernetes.api_errors import api_words, forward_refused, refusal
from monarch.job.kubernetes.kube_config import KubeConfigError, access, parse_credential
from tests.kube.lab import IMAGE, NAMESPACE, Lab
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


def test_a_token_in_the_file(cluster: Lab) -> None:
    cluster.store.create("v1", "pods", NAMESPACE, POD)
    assert [pod["metadata"]["name"] for pod in pods_through(KubeConfig.from_path(cluster.kubeconfig()))] == ["p"]


@pytest.mark.parametrize(
    "printed",
    ["json.dumps({'kind': 'ExecCredential', 'status': {'token': 'right'}})", "'status:\\n  token: right\\n'"],
    ids=["json", "yaml"],
)
def test_a_credential_plugin(cluster: Lab, printed: str) -> None:
    plugin = plugin_that(cluster.folder, f"assert os.environ['KUBERNETES_EXEC_INFO']\nprint({printed})")
    assert pods_through(KubeConfig.from_path(cluster.kubeconfig(exec=plugin))) == []


def test_a_token_that_expires_is_asked_for_again(cluster: Lab) -> None:
    count = cluster.folder / "count"
    soon = (datetime.now(UTC) + timedelta(seconds=30)).isoformat()
    plugin = plugin_that(
        cluster.folder,
        f"open({os.fspath(count)!r}, 'a').write('x')\n"
        f"print(json.dumps({{'status': {{'token': 'right', 'expirationTimestamp': {soon!r}}}}}))",
    )
    assert pods_through(KubeConfig.from_path(cluster.kubeconfig(exec=plugin))) == []
    assert len(count.read_text()) >= 2


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("sys.exit('Unable to locate credentials: run aws sso login')", "run aws sso login"),
        ("print('hello')", "printed no ExecCredential"),
        ("print('{\"status\": {}}')", "neither a token nor a certificate"),
    ],
)
def test_a_plugin_that_gives_nothing_says_why(cluster: Lab, body: str, words: str) -> None:
    kubeconfig = cluster.kubeconfig(exec=plugin_that(cluster.folder, body))
    with pytest.raises(KubeConfigError, match=words) as raised:
        access(KubeConfig.from_path(kubeconfig))
    assert str(kubeconfig) in str(raised.value)


def test_a_plugin_that_is_not_there(cluster: Lab) -> None:
    plugin = {"apiVersion": "v1", "command": "no-such-plugin", "installHint": "Install it from the cloud's page."}
    with pytest.raises(KubeConfigError, match=r"'no-such-plugin': No such file .* Install it from the cloud's page"):
        access(KubeConfig.from_path(cluster.kubeconfig(exec=plugin)))


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


def test_a_proxy_that_the_file_names_is_used(cluster: Lab) -> None:
    file = cluster.kubeconfig()
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


def configuration(cluster: Lab) -> Any:
    return access(KubeConfig.from_path(cluster.kubeconfig())).configuration


def test_credentials_in_memory_are_not_stored(cluster: Lab, caplog: pytest.LogCaptureFixture) -> None:
    job = KubernetesJob(NAMESPACE, kubeconfig=KubeConfig.from_config(configuration(cluster)))
    job.add_mesh("trainers", 1, image_spec=ImageSpec(IMAGE))
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
    assert "StatefulSet trainers" in cluster.store.everything()
    stored.kill()
    assert cluster.store.everything() == []


# --- what the API server says


def test_expired_credentials(cluster: Lab) -> None:
    cluster.api.tokens.clear()
    with pytest.raises(ClusterError, match=r"401 Unauthorized: Unauthorized\. The credentials are expired") as raised:
        pods_through(KubeConfig.from_path(cluster.kubeconfig()))
    assert "context 'lab' of" in str(raised.value) and cluster.api.url in str(raised.value)


def test_a_server_that_cannot_be_reached(cluster: Lab) -> None:
    file = cluster.kubeconfig()
    file.write_text(file.read_text().replace(cluster.api.url, "https://127.0.0.1:1"))
    with pytest.raises(SchedulerError, match=r"cannot be reached: .*Connection refused.*Check the network"):
        pods_through(KubeConfig.from_path(file))


def test_a_server_with_another_certificate(cluster: Lab) -> None:
    file = cluster.kubeconfig()
    config = json.loads(file.read_text())
    del config["clusters"][0]["cluster"]["certificate-authority-data"]
    file.write_text(json.dumps(config))
    with pytest.raises(SchedulerError, match=r"cannot be reached: .*CERTIFICATE_VERIFY_FAILED"):
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
    monkeypatch.setattr(api, "_LARGEST", 1 << 20)
    cluster, said = server
    said |= {"answer": b"{", "endless": b" " * 1000, "status": status}
    with pytest.raises(ClusterError, match="more than 1,048,576 bytes"):
        cluster.pods("a=b")
    said["endless"] = b""
    monkeypatch.setattr(api, "_WHOLE", 0.0)
    with pytest.raises(ClusterError, match="not there after 0 s"):
        cluster.pods("a=b")


def test_a_pod_that_has_said_nothing(server: tuple[Cluster, dict[str, bytes]]) -> None:
    cluster, said = server
    said["answer"] = b""
    assert cluster.last_words("trainers-0", "worker") == ""
