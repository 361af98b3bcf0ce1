"""Programs outside the cluster that use a KubernetesJob: they reach its workers through the API server."""

from __future__ import annotations

import base64
import json
import signal
from typing import Any

import pytest

from monarch.job.kubernetes import manifests
from monarch.job.kubernetes.manifests import Names
from tests.kube.lab import IMAGE, NAMESPACE, Lab, lab
from tests.support.tiers import first_of, full

PROGRAM = f"""
    import os, sys, threading
    from monarch.actor import Actor, SupervisionError, endpoint
    from monarch.job.kubernetes import ImageSpec, KubeConfig, KubernetesJob

    class Teller(Actor):
        @endpoint
        def host(self): return os.environ["MONARCH_RUNTIME_DIR"].rpartition("run-")[2]
        @endpoint
        def wait(self): threading.Event().wait()
        @endpoint
        def ask(self, other): return other.host.call_one().get(300)

    def ask(mesh):
        tellers = mesh.spawn_procs({{"gpus": 1}}).spawn("tellers", Teller)
        return list(tellers.host.call().get(300).values())

    def a_job(**mesh):
        job = KubernetesJob({NAMESPACE!r}, kubeconfig=KubeConfig.from_path(sys.argv[1]), timeout=60)
        job.add_mesh("trainers", 2, **mesh)
        return job
"""

MADE = f'a_job(image_spec=ImageSpec("{IMAGE}"))'

LIFE = (
    PROGRAM
    + f"""
    job = {MADE}
    state = job.state()
    print(*ask(state.trainers))
    tellers = state.trainers.spawn_procs({{"gpus": 1}}).spawn("tellers", Teller)
    # Hosts speak to each other as well, at the pods' own addresses.
    print(tellers.slice(hosts=0).ask.call_one(tellers.slice(hosts=1)).get(300))
    state.trainers.stop().get(300)
"""
)
NEXT = (
    PROGRAM
    + f"""
    job = {MADE}
    print(*ask(job.state().trainers))
    job.kill()
    print(*ask(job.state(cached_path=None).trainers))  # the same program may have another
    job.kill()
"""
)


@pytest.mark.parametrize("operator", first_of([False, True]))
def test_from_nothing_to_actors_and_back(operator: bool, scripts: Any) -> None:
    with lab(operator) as cluster:
        kubeconfig = str(cluster.kubeconfig())
        done = scripts.run(LIFE, kubeconfig)
        made = list(cluster.addresses().values())
        assert done.stdout.split() == [*made, made[1]]
        assert ("Kind MonarchMesh" if operator else "made StatefulSet") in done.stderr.replace(
            "made ", "Kind ", operator
        )

        cluster.evict("trainers-1")
        now = list(cluster.addresses().values())
        assert now[0] == made[0] and now[1] != made[1]

        done = scripts.run(NEXT, kubeconfig)
        assert "Connecting to cached job" in done.stderr
        first, second = (line.split() for line in done.stdout.splitlines())
        assert first == now and not set(second) & set(now)
        assert cluster.store.everything() == [] and cluster.addresses() == {}


THEIRS = (
    PROGRAM
    + """
    job = a_job()
    print(*ask(job.state(cached_path=None).trainers))
    try:
        job.kill()
    except NotImplementedError as error:
        print(error)
"""
)


@full
def test_pods_that_others_have_made(cluster: Lab, scripts: Any) -> None:
    names = Names(NAMESPACE, "theirs")
    word = base64.b64encode(b"of the others, and long enough").decode()
    cluster.add("v1", "secrets", {"metadata": {"name": names.secret}, "data": {"secret": word}})
    variables = manifests.environment({"MONARCH_SECRET": ""}, names, 26611)
    command = ["python", "-m", "monarch", "worker", "--address", "tcp://*:26611"]
    container = {"name": "c", "image": IMAGE, "command": command, "env": variables}
    template = {"spec": {"containers": [container]}}
    for made in manifests.mesh_objects(names, "trainers", 2, 26611, template, operator=False):
        kind = manifests.KINDS[made["kind"]]
        cluster.add(kind.api_version, kind.plural, made)
    there = cluster.addresses()

    done = scripts.run(THEIRS, str(cluster.kubeconfig()))
    assert done.stdout.splitlines() == [
        " ".join(there.values()),
        "KubernetesJob currently does not support killing pods.",
    ]
    assert cluster.addresses() == there
    assert all("/portforward" not in path or "trainers-0" in path for _, path in cluster.api.requests)


ATTACHED = (
    PROGRAM
    + f"""
    job = {MADE}
    job.apply()
    sys.stdin.readline()
    job._attach_to = job._poll().workers["trainers"][0]
    print(*ask(job.state(cached_path=None).trainers))
    job.kill()
"""
)


@full
def test_a_worker_that_can_be_reached_otherwise(cluster: Lab, scripts: Any) -> None:
    program = scripts.start(ATTACHED, str(cluster.kubeconfig()))
    assert "made StatefulSet" in program.stderr.readline()
    cluster.do(lambda: None)
    there = cluster.addresses()
    out, err = program.communicate("go\n", timeout=60)
    assert out.split() == list(there.values()), err
    assert not any("portforward" in path for _, path in cluster.api.requests)


REFUSED = (
    PROGRAM
    + f"""
    {MADE}.state(cached_path=None)
"""
)


@full
def test_a_forward_that_is_refused_is_told_and_leaves_nothing(cluster: Lab, scripts: Any) -> None:
    from tests.kube.api_server import Refused

    words = 'pods "trainers-0" is forbidden: User "me" cannot create resource "pods/portforward"'
    cluster.api.refuse["GET", "portforward"] = Refused(403, "Forbidden", words)
    done = scripts.run(REFUSED, str(cluster.kubeconfig()), check=False)
    assert done.returncode == 1
    assert f"cannot forward a port to pod trainers-0 in namespace {NAMESPACE}" in done.stderr
    assert words in done.stderr and "rbac.yaml" in done.stderr
    assert cluster.store.everything() == []


@full
def test_ctrl_c_while_waiting_leaves_nothing(cluster: Lab, scripts: Any) -> None:
    cluster.unschedulable = "no node is free"
    program = scripts.start(REFUSED, str(cluster.kubeconfig()))
    lines = []
    while "no node is free" not in (lines or [""])[-1]:
        lines.append(program.stderr.readline())
        assert lines[-1], lines
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=60)
    assert "KeyboardInterrupt" in err and "was cancelled" in err
    assert cluster.store.everything() == []
    assert json.dumps(lines).count("missing ranks") >= 1


REPLACED = (
    PROGRAM
    + f"""
    job = {MADE}
    hosts = job.state(cached_path=None).trainers
    tellers = hosts.slice(hosts=1).spawn_procs({{"gpus": 1}}).spawn("tellers", Teller)
    print(tellers.host.call_one().get(300), flush=True)
    waits = tellers.wait.call_one()
    print("waits", flush=True)
    try:
        waits.get(300)
    except SupervisionError:
        pass
    print(hosts.replace(failed=True).get(300))
    print(*ask(hosts))
    job.kill()
"""
)


@full
def test_an_evicted_pod_takes_its_old_place_in_the_mesh(cluster: Lab, scripts: Any) -> None:
    program = scripts.start(REPLACED, str(cluster.kubeconfig()))
    before = program.stdout.readline().strip()
    assert program.stdout.readline() == "waits\n", program.stderr.read()
    assert before == cluster.addresses()["trainers-1"], program.stderr.read()
    cluster.evict("trainers-1")
    now = cluster.addresses()
    out, err = program.communicate(timeout=60)
    assert program.returncode == 0, err
    assert now["trainers-1"] != before
    assert out.splitlines() == ["[1]", " ".join(now.values())]
    assert cluster.store.everything() == []
