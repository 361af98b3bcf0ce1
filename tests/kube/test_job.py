"""KubernetesJob and the API server: what it makes, waits for, is told, and leaves behind. What pods do is played;
real ones are in test_programs.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch.job import Ended, Ready, SchedulerError, Waiting, WorkerLaunch, project_file
from monarch.job.kubernetes import ImageSpec, KubeConfig, KubernetesJob, outage
from monarch.job.kubernetes.pods import FIXABLE
from tests.kube.api_server import APPS, OPERATOR, ApiServer, Refused
from tests.kube.lab import IMAGE, NAMESPACE, Lab
from tests.kube.values import Clock, job_in, start
from tests.support.hosts import ROOT

JOB = "monarch.pytorch.org/job"


@pytest.fixture
def applied(api: ApiServer, clock: Clock) -> Iterator[Callable[..., KubernetesJob]]:
    """Makes a job and applies it. It is killed at the end."""
    jobs = []

    def apply(**options: Any) -> KubernetesJob:
        job = job_in(api, **options)
        job.apply()
        jobs.append(job)
        return job

    yield apply
    api.refuse.clear()
    for job in jobs:
        job.kill()
    assert api.store.everything() == []


def why(job: KubernetesJob) -> str:
    poll = job._poll()
    assert isinstance(poll, Waiting), poll
    return poll.why


def test_the_secret_is_in_the_secret_only(cluster: Lab) -> None:
    job = job_in(cluster, 1)
    job.apply()
    cluster.do(lambda: None)
    assert job._launch is not None
    names = [name for name in cluster.store.everything() if not name.startswith("Secret")]
    assert names == ["Pod trainers-0", "Service trainers-svc", "StatefulSet trainers"]
    for version, plural in (("v1", "pods"), ("v1", "services"), (APPS, "statefulsets")):
        assert job._launch.secret not in json.dumps(cluster.store.list(version, plural, NAMESPACE))
    for pid in cluster.pids():
        with open(f"/proc/{pid}/cmdline") as words:
            assert job._launch.secret not in words.read()
    assert "MONARCH_WORKER_LEASE" not in json.dumps(cluster.store.list("v1", "pods", NAMESPACE))
    job.kill()


def test_a_wrong_image_is_told_and_fails_after_a_while(
    api: ApiServer, applied: Callable[..., KubernetesJob], clock: Clock
) -> None:
    job = applied()
    pulling = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}
    start(api, phase="Pending", containerStatuses=[{"name": "worker", "image": "x:1", "state": pulling}])
    said = "ImagePullBackOff: image 'x:1': Back-off"
    assert why(job) == (f"trainers: 0/2 pods are ready, missing ranks: [0, 1]; pod trainers-0 and 1 more: {said}")
    clock.now += FIXABLE - 1
    assert said in why(job)
    clock.now += 1
    poll = job._poll()
    assert poll == Ended(f"pod trainers-0 in namespace {NAMESPACE} cannot start: {said}")


def test_a_worker_that_crashes_fails_with_its_last_words(cluster: Lab, clock: Clock) -> None:
    job = KubernetesJob(NAMESPACE, kubeconfig=KubeConfig.from_path(cluster.kubeconfig()))
    words = "import sys; sys.exit('No module named monarch')"
    container = {"name": "mine", "image": IMAGE, "command": ["python", "-c", words]}
    job.add_mesh("trainers", 1, pod_template={"spec": {"containers": [container]}})
    job.apply()
    cluster.crashed.wait(60)
    cluster.do(lambda: None)
    assert why(job).endswith("pod trainers-0: CrashLoopBackOff: exit code 1")
    clock.now += FIXABLE
    poll = job._poll()
    assert isinstance(poll, Ended)
    assert poll.why.endswith("exit code 1; its container wrote last:\nNo module named monarch")
    job.kill()
    assert cluster.store.everything() == []


def test_pods_that_find_no_node_are_waited_for(
    api: ApiServer, applied: Callable[..., KubernetesJob], clock: Clock
) -> None:
    job = applied()
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    start(api, phase="Pending", conditions=[said])
    clock.now += 1e6
    assert "Unschedulable: 0/3 nodes are available" in why(job)


def test_a_quota_is_told_in_its_own_words(api: ApiServer, applied: Callable[..., KubernetesJob]) -> None:
    job = applied()
    words = 'create Pod trainers-0 in StatefulSet trainers failed error: pods "trainers-0" is forbidden: exceeded quota'
    warning = {"involvedObject": {"kind": "StatefulSet", "name": "trainers"}, "type": "Warning", "message": words}
    api.store.create("v1", "events", NAMESPACE, warning | {"metadata": {"name": "trainers.warning"}})
    assert why(job).endswith(f"no pod was made yet: {words}")
    api.refuse["GET", "events"] = Refused(403, "Forbidden", "events is forbidden")
    assert why(job).endswith("no pod was made yet")
    api.store.delete("v1", "events", NAMESPACE, "trainers.warning")


@pytest.mark.parametrize("plural", ["secrets", "services", "statefulsets"])
def test_what_may_not_be_made_is_a_sentence_and_leaves_nothing(api: ApiServer, plural: str) -> None:
    words = f'{plural} is forbidden: User "me" cannot create resource "{plural}" in the namespace "{NAMESPACE}"'
    api.refuse["POST", plural] = Refused(403, "Forbidden", words)
    job = job_in(api)
    with pytest.raises(SchedulerError, match=f"answered 403 Forbidden: {words}.*rbac.yaml"):
        job.apply()
    assert not job.active
    assert api.store.everything() == []


def test_a_namespace_that_is_not_there(api: ApiServer) -> None:
    job = KubernetesJob("typo", kubeconfig=KubeConfig.from_path(api.kubeconfig()))
    job.add_mesh("trainers", 1, image_spec=ImageSpec(IMAGE))
    with pytest.raises(SchedulerError, match=r'404 Not Found: namespaces "typo" not found. Check the namespace'):
        job.apply()


def test_the_end_from_outside_is_told(api: ApiServer, applied: Callable[..., KubernetesJob]) -> None:
    job = applied()
    api.store.delete(APPS, "statefulsets", NAMESPACE, "trainers")
    poll = job._poll()
    assert poll == Ended(f"StatefulSet trainers in namespace {NAMESPACE} was deleted: its pods do not come back")
    assert not job.can_run(job_in(api))


def test_who_deletes_the_secret_deletes_the_job(api: ApiServer, applied: Callable[..., KubernetesJob]) -> None:
    job = applied()
    api.store.delete("v1", "secrets", NAMESPACE, job._names.secret)
    assert api.store.everything() == []
    assert isinstance(job._poll(), Ended)


def test_an_outage_of_the_api_is_waited_out(
    api: ApiServer, applied: Callable[..., KubernetesJob], clock: Clock
) -> None:
    job = applied()
    start(api)
    api.refuse["GET", "pods"] = Refused(503, "ServiceUnavailable", "etcd leader changed")
    assert "503 Service Unavailable: etcd leader changed" in why(job)
    clock.now += outage.LIMIT
    with pytest.raises(SchedulerError, match="etcd leader changed"):
        job._poll()
    api.refuse.clear()
    assert isinstance(job._poll(), Ready)
    api.refuse["GET", "pods"] = Refused(503, "ServiceUnavailable", "again")
    assert "again" in why(job)
    with pytest.raises(SchedulerError, match="again"):  # and a job that was kept is left alone
        job.can_run(job_in(api))


def test_what_a_kept_job_can_run(api: ApiServer, applied: Callable[..., KubernetesJob]) -> None:
    job = applied()
    start(api)
    assert job.can_run(job_in(api))
    assert not job.can_run(job_in(api, size=3))
    assert not job.can_run(job_in(api, image="other:1"))
    other = KubernetesJob("elsewhere", kubeconfig=KubeConfig.from_path(api.kubeconfig()))
    other.add_mesh("trainers", 2, image_spec=ImageSpec(IMAGE))
    assert not job.can_run(other)
    assert not job_in(api).can_run(job)  # it was never applied


def test_ranks_that_do_not_come_in_time_are_named(api: ApiServer) -> None:
    job = job_in(api, timeout=0.001)
    with pytest.raises(
        SchedulerError, match=r"Watch ended with 0/2 ranks\. Missing ranks: \[0, 1\]\. .*no pod was made yet"
    ):
        job.state(cached_path=None)
    assert api.store.everything() == []


def test_a_job_needs_meshes_and_is_made_once(api: ApiServer, applied: Callable[..., KubernetesJob]) -> None:
    kubeconfig = KubeConfig.from_path(api.kubeconfig())
    with pytest.raises(ValueError, match="At least one mesh must be added using add_mesh"):
        KubernetesJob(NAMESPACE, kubeconfig=kubeconfig).apply()
    with pytest.raises(RuntimeError, match="KubernetesJob cannot run batch-mode scripts"):
        job_in(api).apply("train.py")
    job = applied()
    with pytest.raises(RuntimeError, match="created already"):
        job._create(None)
    with pytest.raises(ValueError, match="namespace is empty"):
        KubernetesJob("")


def test_pods_that_others_made_are_not_killed(api: ApiServer) -> None:
    job = KubernetesJob(NAMESPACE, kubeconfig=KubeConfig.from_path(api.kubeconfig()))
    job.add_mesh("trainers", 1)
    job.apply()
    assert why(job) == "trainers: 0/1 pods are ready, missing ranks: [0]"
    with pytest.raises(NotImplementedError, match="does not support killing pods"):
        job.kill()


def test_what_is_left_can_be_found_by_hand(applied: Callable[..., KubernetesJob]) -> None:
    job = applied()
    told = job._cleanup_log_context()
    assert told == {"namespace": NAMESPACE, "meshes": ["trainers"], "secret": job._names.secret}


@pytest.mark.parametrize("operator", [None, False])
def test_the_operator_is_used_where_there_is_one_and_can_be_left_aside(
    api: ApiServer, applied: Callable[..., KubernetesJob], operator: bool | None
) -> None:
    api.store.served.add((OPERATOR, "monarchmeshes"))
    job = applied(operator=operator)
    meshes = api.store.list(OPERATOR, "monarchmeshes", NAMESPACE)
    assert [mesh["metadata"]["labels"][JOB] for mesh in meshes] == ([job._names.job] if operator is None else [])
    assert len(api.store.list(APPS, "statefulsets", NAMESPACE)) == (operator is False)


def test_a_project_file_can_describe_one() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    project = project_file.parse(page.partition("```toml\n")[2].partition("```")[0], "/x/monarch.toml")
    assert project is not None
    job = project_file.build(project.jobs["cluster"], project.path)
    wanted = KubernetesJob("research", kubeconfig=KubeConfig.from_path("~/.kube/config"))
    wanted.add_mesh("trainers", 4, image_spec=ImageSpec("registry.local/train:1", {"nvidia.com/gpu": 8}))
    assert isinstance(job, KubernetesJob) and job._same(wanted)
    assert job._kubeconfig == wanted._kubeconfig


def test_spares_of_a_mesh_of_pods_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("monarch.job.scheduled.attach_to_workers", lambda **how: given.update(how))
    job = KubernetesJob("research")
    job.add_mesh("trainers", 3, image_spec=ImageSpec("an-image"))
    job.use_spares(trainers=1)
    job._launch = WorkerLaunch("a secret", tls={"ca": "ca.pem"})
    job._attach({"trainers": ["tcp://a:1", "tcp://b:1", "tcp://c:1"]})
    assert (given["workers"], given["spares"]) == (["tcp://a:1", "tcp://b:1"], ["tcp://c:1"])
    assert (given["name"], given["secret"], given["ca"]) == ("trainers", "a secret", "ca.pem")
