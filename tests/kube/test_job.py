"""KubernetesJob and the API server: what it makes, waits for, is told, and leaves behind. Workers are real, clients are in
test_programs.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from monarch.job import Ended, Ready, SchedulerError, Waiting, WorkerLaunch, project_file
from monarch.job.kubernetes import ImageSpec, KubeConfig, KubernetesJob, outage
from monarch.job.kubernetes import job as job_module
from monarch.job.kubernetes.pods import FIXABLE
from tests.kube.api_server import APPS, Refused
from tests.kube.lab import IMAGE, NAMESPACE, Lab
from tests.support.hosts import ROOT

JOB = "monarch.pytorch.org/job"


def job_in(cluster: Lab, size: int = 2, image: str = IMAGE, **options: Any) -> KubernetesJob:
    job = KubernetesJob(NAMESPACE, kubeconfig=KubeConfig.from_path(cluster.kubeconfig()), **options)
    job.add_mesh("trainers", size, image_spec=ImageSpec(image))
    return job


@pytest.fixture
def applied(cluster: Lab) -> Iterator[Callable[..., KubernetesJob]]:
    """Makes a job and applies it; the cluster has settled then. It is killed at the end."""
    jobs = []

    def apply(**options: Any) -> KubernetesJob:
        job = job_in(cluster, **options)
        job.apply()
        jobs.append(job)
        cluster.do(lambda: None)
        return job

    yield apply
    for job in jobs:
        job.kill()
    assert cluster.store.everything() in ([], ["Event trainers.warning"])


def why(job: KubernetesJob) -> str:
    poll = job._poll()
    assert isinstance(poll, Waiting), poll
    return poll.why


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock of jobs."""
    now = [1000.0]

    def add(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(job_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return add


def test_pods_are_found_by_rank(cluster: Lab, applied: Callable[..., KubernetesJob]) -> None:
    poll = applied()._poll()
    addresses = [f"tcp://{cluster.addresses()[name]}:26600" for name in ("trainers-0", "trainers-1")]
    assert poll == Ready({"trainers": addresses})


def test_the_secret_is_in_the_secret_only(cluster: Lab, applied: Callable[..., KubernetesJob]) -> None:
    job = applied(size=1)
    assert job._launch is not None
    names = [name for name in cluster.store.everything() if not name.startswith("Secret")]
    assert names == ["Pod trainers-0", "Service trainers-svc", "StatefulSet trainers"]
    for version, plural in (("v1", "pods"), ("v1", "services"), (APPS, "statefulsets")):
        assert job._launch.secret not in json.dumps(cluster.store.list(version, plural, NAMESPACE))
    for pid in cluster.pids():
        with open(f"/proc/{pid}/cmdline") as words:
            assert job._launch.secret not in words.read()
    assert "MONARCH_WORKER_LEASE" not in json.dumps(cluster.store.list("v1", "pods", NAMESPACE))


def test_an_evicted_pod_comes_back_under_its_number(cluster: Lab, applied: Callable[..., KubernetesJob]) -> None:
    job = applied()
    before = job._poll()
    cluster.evict("trainers-1")
    after = job._poll()
    assert isinstance(before, Ready) and isinstance(after, Ready)
    assert before.workers["trainers"][0] == after.workers["trainers"][0]
    assert before.workers["trainers"][1] != after.workers["trainers"][1]
    assert cluster.addresses()["trainers-1"] in after.workers["trainers"][1]


def test_a_wrong_image_is_told_and_fails_after_a_while(
    applied: Callable[..., KubernetesJob], later: Callable[[float], None]
) -> None:
    job = applied(image="registry.local/typo:1")
    said = 'ImagePullBackOff: Back-off pulling image "registry.local/typo:1": not found'
    assert why(job) == (f"trainers: 0/2 pods are ready, missing ranks: [0, 1]; pod trainers-0 and 1 more: {said}")
    later(FIXABLE - 1)
    assert said in why(job)
    later(1)
    poll = job._poll()
    assert poll == Ended(f"pod trainers-0 in namespace {NAMESPACE} cannot start: {said}")


def test_a_worker_that_crashes_fails_with_its_last_words(cluster: Lab, later: Callable[[float], None]) -> None:
    job = KubernetesJob(NAMESPACE, kubeconfig=KubeConfig.from_path(cluster.kubeconfig()))
    words = "import sys; sys.exit('No module named monarch')"
    container = {"name": "mine", "image": IMAGE, "command": ["python", "-c", words]}
    job.add_mesh("trainers", 1, pod_template={"spec": {"containers": [container]}})
    job.apply()
    cluster.crashed.wait(60)
    cluster.do(lambda: None)
    assert why(job).endswith("pod trainers-0: CrashLoopBackOff: exit code 1")
    later(FIXABLE)
    poll = job._poll()
    assert isinstance(poll, Ended)
    assert poll.why.endswith("exit code 1; its container wrote last:\nNo module named monarch")
    job.kill()
    assert cluster.store.everything() == []


def test_pods_that_find_no_node_are_waited_for(
    cluster: Lab, applied: Callable[..., KubernetesJob], later: Callable[[float], None]
) -> None:
    cluster.unschedulable = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    job = applied()
    later(1e6)
    assert "Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu." in why(job)


def test_a_quota_is_told_in_its_own_words(cluster: Lab, applied: Callable[..., KubernetesJob]) -> None:
    cluster.quota = 'pods "trainers-0" is forbidden: exceeded quota: gpus, requested: 8, used: 8, limited: 8'
    assert "no pod was made yet: create Pod trainers-0" in why(applied())
    cluster.api.refuse["GET", "events"] = Refused(403, "Forbidden", "events is forbidden")
    assert why(applied()).endswith("no pod was made yet")


@pytest.mark.parametrize("plural", ["secrets", "services", "statefulsets"])
def test_what_may_not_be_made_is_a_sentence_and_leaves_nothing(cluster: Lab, plural: str) -> None:
    words = f'{plural} is forbidden: User "me" cannot create resource "{plural}" in the namespace "{NAMESPACE}"'
    cluster.api.refuse["POST", plural] = Refused(403, "Forbidden", words)
    job = job_in(cluster)
    with pytest.raises(SchedulerError, match=f"answered 403 Forbidden: {words}.*rbac.yaml"):
        job.apply()
    assert not job.active
    assert cluster.store.everything() == []


def test_a_namespace_that_is_not_there(cluster: Lab) -> None:
    job = KubernetesJob("typo", kubeconfig=KubeConfig.from_path(cluster.kubeconfig()))
    job.add_mesh("trainers", 1, image_spec=ImageSpec(IMAGE))
    with pytest.raises(SchedulerError, match=r'404 Not Found: namespaces "typo" not found. Check the namespace'):
        job.apply()


def test_the_end_from_outside_is_told(cluster: Lab, applied: Callable[..., KubernetesJob]) -> None:
    job = applied()
    cluster.remove(APPS, "statefulsets", "trainers")
    poll = job._poll()
    assert poll == Ended(f"StatefulSet trainers in namespace {NAMESPACE} was deleted: its pods do not come back")
    assert not job.can_run(job_in(cluster))


def test_who_deletes_the_secret_deletes_the_job(cluster: Lab, applied: Callable[..., KubernetesJob]) -> None:
    job = applied()
    cluster.remove("v1", "secrets", job._names.secret)
    assert cluster.store.everything() == [] and cluster.addresses() == {}
    assert isinstance(job._poll(), Ended)


def test_a_mesh_of_the_same_name_is_taken_over(cluster: Lab, applied: Callable[..., KubernetesJob]) -> None:
    first = applied(size=1)
    second = applied(size=2)
    poll = first._poll()
    assert isinstance(poll, Ended) and "is another job's now" in poll.why
    assert isinstance(second._poll(), Ready)


def test_an_outage_of_the_api_is_waited_out(
    cluster: Lab, applied: Callable[..., KubernetesJob], later: Callable[[float], None]
) -> None:
    job = applied()
    cluster.api.refuse["GET", "pods"] = Refused(503, "ServiceUnavailable", "etcd leader changed")
    assert "503 Service Unavailable: etcd leader changed" in why(job)
    later(outage.LIMIT)
    with pytest.raises(SchedulerError, match="etcd leader changed"):
        job._poll()
    cluster.api.refuse.clear()
    assert isinstance(job._poll(), Ready)
    cluster.api.refuse["GET", "pods"] = Refused(503, "ServiceUnavailable", "again")
    assert "again" in why(job)
    with pytest.raises(SchedulerError, match="again"):  # and a job that was kept is left alone
        job.can_run(job_in(cluster))
    cluster.api.refuse.clear()


def test_what_a_kept_job_can_run(cluster: Lab, applied: Callable[..., KubernetesJob]) -> None:
    job = applied()
    assert job.can_run(job_in(cluster))
    assert not job.can_run(job_in(cluster, size=3))
    assert not job.can_run(job_in(cluster, image="other:1"))
    other = KubernetesJob("elsewhere", kubeconfig=KubeConfig.from_path(cluster.kubeconfig()))
    other.add_mesh("trainers", 2, image_spec=ImageSpec(IMAGE))
    assert not job.can_run(other)
    assert not job_in(cluster).can_run(job)  # it was never applied


def test_ranks_that_do_not_come_in_time_are_named(cluster: Lab) -> None:
    cluster.unschedulable = "no node is free"
    job = job_in(cluster, timeout=0.001)
    with pytest.raises(
        SchedulerError, match=r"Watch ended with 0/2 ranks\. Missing ranks: \[0, 1\]\. .*no node is free"
    ):
        job.state(cached_path=None)
    assert cluster.store.everything() == []


def test_a_job_needs_meshes_and_is_made_once(cluster: Lab, applied: Callable[..., KubernetesJob]) -> None:
    kubeconfig = KubeConfig.from_path(cluster.kubeconfig())
    with pytest.raises(ValueError, match="At least one mesh must be added using add_mesh"):
        KubernetesJob(NAMESPACE, kubeconfig=kubeconfig).apply()
    with pytest.raises(RuntimeError, match="KubernetesJob cannot run batch-mode scripts"):
        job_in(cluster).apply("train.py")
    job = applied()
    with pytest.raises(RuntimeError, match="created already"):
        job._create(None)
    with pytest.raises(ValueError, match="namespace is empty"):
        KubernetesJob("")


def test_pods_that_others_made_are_not_killed(cluster: Lab) -> None:
    job = KubernetesJob(NAMESPACE, kubeconfig=KubeConfig.from_path(cluster.kubeconfig()))
    job.add_mesh("trainers", 1)
    job.apply()
    assert why(job) == "trainers: 0/1 pods are ready, missing ranks: [0]"
    with pytest.raises(NotImplementedError, match="does not support killing pods"):
        job.kill()


def test_what_is_left_can_be_found_by_hand(cluster: Lab, applied: Callable[..., KubernetesJob]) -> None:
    job = applied()
    told = job._cleanup_log_context()
    assert told == {"namespace": NAMESPACE, "meshes": ["trainers"], "secret": job._names.secret}


def test_the_operator_is_used_where_there_is_one(operated: Lab) -> None:
    job = job_in(operated)
    job.apply()
    operated.do(lambda: None)
    (mesh,) = operated.store.list("monarch.pytorch.org/v1alpha1", "monarchmeshes", NAMESPACE)
    assert mesh["metadata"]["labels"][JOB] == job._names.job
    assert isinstance(job._poll(), Ready)
    job.kill()
    assert operated.store.everything() == [] and operated.addresses() == {}


def test_and_can_be_left_aside(operated: Lab) -> None:
    job = job_in(operated, operator=False)
    job.apply()
    operated.do(lambda: None)
    assert operated.store.list("monarch.pytorch.org/v1alpha1", "monarchmeshes", NAMESPACE) == []
    assert isinstance(job._poll(), Ready)
    job.kill()
    assert operated.store.everything() == []


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
