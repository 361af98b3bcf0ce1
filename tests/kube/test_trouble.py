"""A job and an API server in trouble: overloaded, gone for a while, changed by others, hostile. No pods run."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from monarch.job import Ended, Ready, SchedulerError, Waiting
from monarch.job.kubernetes import ImageSpec, KubeConfig, KubernetesJob, gateway
from monarch.job.kubernetes import api as api_module
from monarch.job.kubernetes.api import ClusterError
from monarch.job.kubernetes.kube_config import access
from monarch.job.kubernetes.outage import LIMIT, Outage
from monarch.job.kubernetes.pods import job_of as job_of_pod
from monarch.job.kubernetes.pods import look, port_of, secret_of
from monarch.job.progress import job_logger
from tests.kube.api_server import APPS, CORE, ApiServer, Lost, Refused, Store
from tests.kube.lab import IMAGE, NAMESPACE, POD_INDEX
from tests.kube.values import Clock, allowed, job_in, places, start, with_

BUSY = "Too many requests, please try again later."


def busy(seconds: int) -> Refused:
    return Refused(429, "TooManyRequests", BUSY, {"Retry-After": str(seconds)})


def down() -> Refused:
    return Refused(503, "ServiceUnavailable", "etcd leader changed")


@contextmanager
def said(caplog: pytest.LogCaptureFixture, name: str = "monarch.job", level: int = logging.INFO) -> Iterator[list[str]]:
    """Gives the lines that are logged, at its end."""
    lines: list[str] = []
    job_logger()  # has its own handler from now on, and does not pass on what it logs
    logger = logging.getLogger(name)
    logger.addHandler(caplog.handler)
    before = logger.level
    logger.setLevel(level)
    try:
        yield lines
    finally:
        logger.removeHandler(caplog.handler)
        logger.setLevel(before)
        lines += [record.getMessage() for record in caplog.records]


# --- overload and outages


def test_an_overloaded_server_is_asked_again_when_it_says(
    api: ApiServer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    api.upset = {("POST", "secrets"): [busy(7), busy(3)], ("DELETE", "secrets"): [busy(5)]}
    job = job_in(api)
    with said(caplog) as lines:
        job.apply()
        job.kill()
    assert clock.waits == [7.0, 3.0, 5.0]
    (told,) = [line for line in lines if BUSY in line]
    assert told.endswith("The API server is overloaded; try again later. It is asked again for 60 s")
    assert api.store.everything() == []


def test_an_overload_that_does_not_end_is_an_error_and_leaves_nothing(api: ApiServer, clock: Clock) -> None:
    api.refuse["POST", "statefulsets"] = busy(3600)
    job = job_in(api)
    with pytest.raises(ClusterError, match=f"answered 429 Too Many Requests: {BUSY}"):
        job.apply()
    assert clock.waits == [LIMIT]
    assert api.store.everything() == []


def test_while_pods_are_awaited_an_overloaded_server_is_left_alone(api: ApiServer, clock: Clock) -> None:
    job = job_in(api)
    job.apply()
    start(api)
    api.upset["GET", "pods"] = [busy(20)]
    poll, asked = job._poll(), len(api.requests)
    assert isinstance(poll, Waiting) and BUSY in poll.why
    clock.now += 19
    assert job._poll() == poll and len(api.requests) == asked
    clock.now += 1
    assert isinstance(job._poll(), Ready)


def test_a_server_that_fails_for_a_while_is_waited_for(api: ApiServer, clock: Clock) -> None:
    for what in (("POST", "secrets"), ("POST", "services"), ("POST", "statefulsets"), ("DELETE", "statefulsets")):
        api.upset[what] = [down(), down()]
    job = job_in(api)
    job.apply()
    start(api)
    assert isinstance(job._poll(), Ready)
    job.kill()
    assert clock.waits == [1.0, 2.0] * 4  # each answer in between begins anew
    assert api.store.everything() == []


@pytest.mark.parametrize("done", [False, True], ids=["lost on the way there", "lost on the way back"])
def test_a_server_that_starts_again_in_the_midst_of_anything(
    api: ApiServer, clock: Clock, caplog: pytest.LogCaptureFixture, done: bool
) -> None:
    """The job owns what a request made whose answer was lost."""
    for method, plurals in (("POST", ("secrets", "services", "statefulsets")), ("DELETE", ("secrets", "statefulsets"))):
        for plural in plurals:
            api.upset[method, plural] = [Lost(done)]
    job = job_in(api)
    with said(caplog) as lines:
        job.apply()
        start(api)
        api.upset["GET", "pods"] = [Lost(done)]
        poll = job._poll()
        assert isinstance(poll, Waiting) and "cannot be reached" in poll.why
        assert isinstance(job._poll(), Ready)
        job.kill()
    assert not any("was there already" in line for line in lines)
    assert api.store.everything() == []


def test_a_server_that_never_answered_is_an_error_at_once(api: ApiServer, clock: Clock) -> None:
    file = api.kubeconfig()
    file.write_text(file.read_text().replace(api.url, "https://127.0.0.1:1"))
    with pytest.raises(ClusterError, match="Connection refused"):
        job_in(api, kubeconfig=KubeConfig.from_path(file)).apply()
    assert clock.waits == []


def test_an_answer_that_does_not_come_is_given_up(
    api: ApiServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_in(api)
    job.apply()
    start(api)
    slow = threading.Event()
    api.upset["GET", "pods"] = [slow]
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(api_module, "TIME_LIMIT", (10.0, 0.05))
        poll = job._poll()
    slow.set()
    assert isinstance(poll, Waiting) and "timed out" in poll.why
    clock.now += 1.0
    assert isinstance(job._poll(), Ready)


def test_waiting_for_an_answer_ends() -> None:
    outage, now = Outage(), 0.0
    refused = ClusterError("busy", 429)
    while (pause := outage.pause(refused, now)) is not None:
        now += pause
    assert now == LIMIT
    assert outage.pause(ClusterError("no", 403), now) is None
    outage.over()
    assert outage.pause(refused, now) == 1.0
    assert outage.pause(ClusterError("busy", 429, retry_after=float("inf")), now) == LIMIT


# --- others who change the same


def theirs(api: ApiServer, **spec: Any) -> None:
    """A StatefulSet of the mesh's name that others have made."""
    labels = {"app.kubernetes.io/name": "monarch-worker", "monarch.pytorch.org/mesh-name": "trainers"}
    pod = {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"disk": "ssd"}}
    kept = {"serviceName": "trainers-svc", "podManagementPolicy": "Parallel", "selector": {"matchLabels": labels}}
    kept |= {"replicas": 9, "minReadySeconds": 5, "template": {"metadata": {"labels": labels}, "spec": pod}}
    metadata = {"name": "trainers", "labels": {"queue": "old"}, "annotations": {"note": "old"}}
    api.store.create(APPS, "statefulsets", NAMESPACE, {"metadata": metadata, "spec": kept | spec})


def test_of_an_object_that_was_there_nothing_is_left(api: ApiServer, clock: Clock) -> None:
    theirs(api)
    job = job_in(api)
    job.apply()
    (there,) = api.store.list(APPS, "statefulsets", NAMESPACE)
    made = json.dumps(there)
    assert "ssd" not in made and "old" not in made and "minReadySeconds" not in made
    assert there["spec"]["replicas"] == 2 and there["metadata"]["ownerReferences"]
    job.kill()
    assert api.store.everything() == []


def test_one_that_is_too_different_is_told_and_stays(api: ApiServer, clock: Clock) -> None:
    theirs(api, serviceName="other")
    words = "updates to statefulset spec for fields other than .* An object of this name is there that is too different"
    with pytest.raises(ClusterError, match=f"cannot change StatefulSet trainers .* answered 422 .*{words}"):
        job_in(api).apply()
    (there,) = api.store.list(APPS, "statefulsets", NAMESPACE)
    assert there["spec"]["replicas"] == 9
    assert api.store.everything() == ["StatefulSet trainers"]


CONFLICT = Refused(409, "Conflict", "the object has been modified; please apply your changes to the latest version")


def test_changes_of_others_at_the_same_time(api: ApiServer, clock: Clock) -> None:
    theirs(api)
    api.upset["PATCH", "statefulsets"] = [CONFLICT, CONFLICT]
    job = job_in(api)
    job.apply()
    (there,) = api.store.list(APPS, "statefulsets", NAMESPACE)
    assert there["spec"]["replicas"] == 2
    job.kill()
    theirs(api)
    api.refuse["PATCH", "statefulsets"] = CONFLICT
    with pytest.raises(ClusterError, match="answered 409 Conflict: the object has been modified"):
        job_in(api).apply()
    assert api.store.everything() == ["StatefulSet trainers"]


def test_an_object_that_goes_before_it_is_changed_is_made(api: ApiServer, clock: Clock) -> None:
    theirs(api)
    api.upset["PATCH", "statefulsets"] = [Refused(404, "NotFound", "gone")]
    api.upset["POST", "statefulsets"] = [Refused(409, "AlreadyExists", "there")]
    job = job_in(api)
    job.apply()
    (there,) = api.store.list(APPS, "statefulsets", NAMESPACE)
    assert there["spec"]["replicas"] == 2
    job.kill()


def test_a_mesh_that_was_taken_over_is_not_deleted_by_who_had_it(api: ApiServer, clock: Clock) -> None:
    first, second = job_in(api), job_in(api, size=3)
    first.apply()
    second.apply()
    start(api, 3)
    assert isinstance(lost := first._poll(), Ended) and "is another job's now" in lost.why
    first.kill()
    assert isinstance(second._poll(), Ready)
    assert len(api.store.list(CORE, "secrets", NAMESPACE)) == 1
    second.kill()
    assert api.store.everything() == []


# --- long lists


class Forgetful(dict[str, Any]):
    """Lists of which the rest is too old."""

    def __contains__(self, token: object) -> bool:
        return False


@pytest.mark.parametrize("forgets", [False, True], ids=["all pages", "410 Gone"])
def test_pods_are_listed_in_pages(api: ApiServer, clock: Clock, forgets: bool) -> None:
    job = job_in(api, size=5)
    job.apply()
    start(api, 5)
    api.page = 2
    api.lists = Forgetful() if forgets else {}
    api.requests.clear()
    poll = job._poll()
    assert isinstance(poll, Ready) and len(poll.workers["trainers"]) == 5
    assert len(api.requests) == 3
    api.refuse["GET", "pods"] = Refused(410, "Expired", "too old")
    with pytest.raises(ClusterError, match="answered 410 Gone: too old"):
        job._poll()


# --- permissions


def test_a_refusal_names_the_rule_that_is_missing_and_these_are_the_role(api: ApiServer, clock: Clock) -> None:
    """Each rule is taken from the error, until the job lives its whole life."""
    api.role = set()
    theirs(api)
    while True:
        job = job_in(api)
        try:
            job.apply()
            poll = job._poll()
            assert isinstance(poll, Waiting)
            job.kill()
            break
        except SchedulerError as error:
            rule = re.search(
                r"Missing is the verb (\S+) on (\S+); this rule .* grants it: - (\{.*\})\. examples", str(error)
            )
            assert rule is not None, error
            (granted,) = yaml.safe_load(f"- {rule[3]}")
            (group,), (resource,), (verb,) = granted["apiGroups"], granted["resources"], granted["verbs"]
            assert (verb, resource) == (rule[1], rule[2])
            assert (group, resource, verb) not in api.role
            api.role.add((group, resource, verb))
            if not api.store.find(APPS, "statefulsets", NAMESPACE, "trainers"):
                theirs(api)
    made = {("", plural, verb) for plural in ("secrets", "services") for verb in ("create", "delete", "get")}
    assert api.role >= made | {("", "pods", "list"), ("apps", "statefulsets", "patch")}
    assert api.role < allowed()


@pytest.mark.parametrize("verb", ["get", "create"])
def test_a_forward_that_is_not_granted_names_its_rule(api: ApiServer, clock: Clock, verb: str) -> None:
    api.role = allowed() - {("", "pods/portforward", verb)}
    found = access(KubeConfig.from_path(api.kubeconfig()))
    with pytest.raises(ConnectionError, match=rf"resources: \[pods/portforward\], verbs: \[{verb}\]"):
        gateway._web_socket(gateway.ForwardTarget(found, NAMESPACE, "trainers-0", 26600))


# --- credentials that are replaced


@pytest.fixture
def in_cluster(api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pod, as a program in it sees it: the file with its token."""
    from kubernetes.config import incluster_config

    token = tmp_path / "token"
    token.write_text("right")
    host, port = api.url.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    authority = tmp_path / "ca.crt"
    authority.write_bytes(api.authority.read_bytes())
    # What `load_incluster_config` reads when it is called.
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    return token


@pytest.mark.parametrize("place", ["a pod", "a kubeconfig"])
def test_a_token_in_a_file_that_is_replaced(api: ApiServer, in_cluster: Path, clock: Clock, place: str) -> None:
    if place == "a pod":
        job = KubernetesJob(NAMESPACE)
        job.add_mesh("trainers", 1, image_spec=ImageSpec(IMAGE))
    else:
        job = job_in(api, 1, kubeconfig=KubeConfig.from_path(api.kubeconfig(tokenFile=str(in_cluster))))
    job.apply()
    start(api, 1)
    api.tokens = {"the next"}
    in_cluster.write_text("the next")
    assert isinstance(job._poll(), Ready)
    job.kill()
    assert api.store.everything() == []


def test_a_token_that_is_revoked_is_an_error(api: ApiServer, clock: Clock) -> None:
    job = job_in(api)
    job.apply()
    api.tokens.clear()
    asked = len(api.requests)
    for _ in range(3):
        with pytest.raises(ClusterError, match="answered 401 Unauthorized"):
            job._poll()
    assert len(api.requests) - asked == 4  # the credentials were read again once
    api.tokens.add("right")
    job.kill()


def test_certificates_that_are_replaced(api: ApiServer, clock: Clock) -> None:
    job = job_in(api)
    job.apply()
    start(api)
    api.replace_certificates(api.folder / "next")
    api.kubeconfig()
    api.upset["GET", "pods"] = [Lost(done=False)]  # who is connected already does not see them
    assert isinstance(job._poll(), Waiting)
    assert isinstance(job._poll(), Ready)
    job.kill()
    assert api.store.everything() == []


def test_a_wrong_certificate_is_not_waited_for(api: ApiServer, clock: Clock) -> None:
    file = api.kubeconfig()
    job = job_in(api, kubeconfig=KubeConfig.from_path(file))
    job.apply()
    api.replace_certificates(api.folder / "next")
    api.upset["GET", "pods"] = [Lost(done=False)]
    assert isinstance(job._poll(), Waiting)
    with pytest.raises(ClusterError, match="CERTIFICATE_VERIFY_FAILED"):
        job._poll()
    with pytest.raises(ClusterError, match="CERTIFICATE_VERIFY_FAILED"):
        job_in(api, kubeconfig=KubeConfig.from_path(file)).apply()
    assert clock.waits == []


# --- where the token goes


def everything_said(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_nothing_is_sent_on_to_where_a_server_leads(
    api: ApiServer, clock: Clock, tmp_path: Path, status: int, method: str
) -> None:
    (tmp_path / "other").mkdir()
    other = ApiServer(Store((NAMESPACE,)), tmp_path / "other")
    try:
        elsewhere = Refused(status, "Moved", "over there", {"Location": f"{other.url}/api/v1/namespaces/x/pods"})
        api.refuse[method, "pods" if method == "GET" else "secrets"] = elsewhere
        job = job_in(api)
        with pytest.raises(
            ClusterError, match=rf"answered {status} .*over there\. It sends requests elsewhere, which are not"
        ):
            job.apply()
            job._poll()
        assert other.requests == []
    finally:
        other.close()


def forwarded(api: ApiServer) -> ConnectionError:
    """Returns why there is no forward."""
    found = access(KubeConfig.from_path(api.kubeconfig()))
    with pytest.raises(ConnectionError) as raised:
        gateway._web_socket(gateway.ForwardTarget(found, NAMESPACE, "trainers-0", 26600))
    return raised.value


@pytest.mark.parametrize("scheme", ["ws", "wss", "https"])
def test_a_forward_is_not_sent_on_either(api: ApiServer, scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0)
        location = f"{scheme}://127.0.0.1:{other.getsockname()[1]}/x"
        api.refuse["GET", "portforward"] = Refused(302, "Moved", "over there", {"Location": location})
        error = forwarded(api)
        with pytest.raises(BlockingIOError):
            other.accept()
    assert "answered 302 Found" in str(error) and "give the kubeconfig the server's own address" in str(error)


def test_a_forward_that_is_not_answered_is_given_up(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "_OPENING", 0.05)
    slow = threading.Event()
    api.upset["GET", "portforward"] = [slow]
    error = forwarded(api)
    slow.set()
    assert "cannot forward a port to pod trainers-0" in str(error) and "timed out" in str(error)


def test_a_forward_with_a_token_that_was_replaced(api: ApiServer) -> None:
    token = api.folder / "token"
    token.write_text("right")
    file = api.kubeconfig(tokenFile=str(token))
    target = gateway.ForwardTarget(access(KubeConfig.from_path(file)), NAMESPACE, "trainers-0", 26600)
    api.tokens = {"the next"}
    token.write_text("the next")
    with pytest.raises(ConnectionError, match='answered 404 Not Found: pods "trainers-0" not found'):
        gateway._web_socket(target)


def test_the_token_and_the_secret_stand_in_no_error_and_no_log(
    api: ApiServer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Even of a server that repeats what it was told."""
    word = "a-token-that-nobody-else-knows"
    api.tokens = {word}
    echo = Refused(403, "Forbidden", f"denied: authorization: Bearer {word}", {"X-Echo": f"Bearer {word}"})
    told = []
    with said(caplog, "", logging.DEBUG) as lines, said(caplog) as own:
        job = job_in(api, kubeconfig=KubeConfig.from_path(api.kubeconfig(token=word)))
        job.apply()
        assert job._connected().secret(job._names.secret, "secret")
        api.refuse = {("GET", "pods"): echo, ("GET", "portforward"): echo}
        with pytest.raises(ClusterError, match="Bearer <token>") as raised:
            job._poll()
        told.append(everything_said(raised.value))
        target = gateway.ForwardTarget(job._connected().access, NAMESPACE, "trainers-0", 26600)
        with pytest.raises(ConnectionError, match="Bearer <token>") as refused:
            gateway._web_socket(target)
        told.append(everything_said(refused.value))
        api.refuse.clear()
        job.kill()
    assert job._launch is not None
    for text in [*told, *lines, *own]:
        assert word not in text and job._launch.secret not in text


# --- answers that are none

NONE: list[Any] = [None, 0, "", "x", [], [[]], {}, {"a": []}]


@pytest.mark.parametrize("wrong", NONE, ids=repr)
def test_pods_of_any_shape_are_looked_at(wrong: Any) -> None:
    whole = {
        "metadata": {"name": "a", "labels": {POD_INDEX: "0"}, "ownerReferences": [{"kind": "x", "controller": True}]},
        "spec": {"containers": [{"env": [{"name": "MONARCH_SECRET", "valueFrom": {"secretKeyRef": {"name": "s"}}}]}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "message": "m"}],
            "containerStatuses": [
                {"name": "c", "image": "i", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "m"}}},
                {"state": {"terminated": {"exitCode": 1}}, "lastState": {"terminated": {"reason": "r"}}},
            ],
        },
    }
    for way in places(whole):
        pod = with_(whole, way, wrong)
        look("m", 1, [pod]).why()
        secret_of(pod), job_of_pod(pod), port_of(pod)


@pytest.mark.parametrize("wrong", [value for value in NONE if value not in (None, [])], ids=repr)
@pytest.mark.parametrize("part", ["items", "metadata"])
def test_lists_of_any_shape_are_errors_or_empty(api: ApiServer, clock: Clock, wrong: Any, part: str) -> None:
    job = job_in(api)
    job.apply()
    answer = Refused(200, "", "")
    answer.body = {"items": [], "metadata": {}} | {part: wrong}
    api.upset["GET", "pods"] = [answer]
    assert isinstance(job._poll(), Waiting)
    job.kill()


def test_a_list_without_an_end_is_given_up(api: ApiServer, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "_MOST_PODS", 10)
    job = job_in(api)
    job.apply()
    answer = Refused(200, "", "")
    for page in ([], [{}]):
        answer.body = {"items": page, "metadata": {"continue": "more"}}
        api.refuse["GET", "pods"] = answer
        poll = job._poll()
        assert isinstance(poll, Waiting) and "gave a list without an end" in poll.why
    api.refuse.clear()
    job.kill()
