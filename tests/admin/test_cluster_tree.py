"""The tree of a simulated cluster: what real Procs and host agents tell, put together."""

from __future__ import annotations

import time

from monarch._mesh.inspection import survey
from monarch.actor import Actor, endpoint, this_host
from monarch.admin.program_tree import ProgramTree, assemble
from monarch.testing import InProcessCluster
from tests.support.patience import TIMEOUT


class Worker(Actor):
    @endpoint
    def ready(self) -> None: ...


def tree() -> ProgramTree:
    answers = survey.ask("tree", timeout=TIMEOUT, agents=True).get(TIMEOUT)
    assert answers.silent == {}
    return assemble(answers, time.time())


def test_hosts_with_their_processes_and_actors() -> None:
    with InProcessCluster(hosts=2) as cluster:
        workers = cluster.hosts.spawn_procs({"gpus": 2}, name="trainers").spawn("worker", Worker)
        workers.ready.call().get(TIMEOUT)
        found = tree()
        hosts = [found.nodes[child] for child in found.nodes["root"].children]
        assert [len(host.children) for host in hosts] == [1, 2, 2]
        for host in hosts[1:]:
            for child in host.children:
                proc = found.nodes[child]
                assert proc.properties.Proc is not None and proc.properties.Proc.mesh_name == "trainers"
                (actor,) = proc.children
                assert found.nodes[actor].parent == child
        ranks = [
            proc.properties.Proc.rank
            for host in hosts[1:]
            for proc in map(found.nodes.__getitem__, host.children)
            if proc.properties.Proc
        ]
        assert ranks == [0, 1, 2, 3]


def test_every_reference_leads_to_a_node_and_back() -> None:
    with InProcessCluster(hosts=1) as cluster:
        cluster.hosts.spawn_procs({"gpus": 2}).spawn("worker", Worker).ready.call().get(TIMEOUT)
        this_host().spawn_procs().spawn("here", Worker).ready.call().get(TIMEOUT)
        found = tree()
        for reference, node in found.nodes.items():
            assert node.identity == reference
            assert node.parent is None or reference in found.nodes[node.parent].children
            assert all(child in found.nodes for child in node.children)


def test_a_dead_rank_between_living_ones() -> None:
    with InProcessCluster() as cluster:
        procs = this_host().spawn_procs({"gpus": 3}, name="trainers")
        workers = procs.spawn("worker", Worker)
        workers.ready.call().get(TIMEOUT)
        cluster.kill(workers, 1)
        cluster.next_failure(TIMEOUT)
        found = tree()
        (host,) = found.nodes["root"].children
        kinds = [found.nodes[child].kind for child in found.nodes[host].children]
        assert kinds == ["Proc", "Proc", "Error", "Proc"]
        procs.restart(failed=True).get(TIMEOUT)
        workers.restart(failed=True).get(TIMEOUT)
        workers.ready.call().get(TIMEOUT)
        found = tree()
        assert [found.nodes[child].kind for child in found.nodes[host].children] == ["Proc"] * 4
