"""Several hosts in an InProcessCluster: what links between them promise, and how the death of a host is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import monarch
from monarch.actor import Actor, Channel, MeshFailure, Port, endpoint, this_host
from monarch.testing import InProcessCluster, Local, VirtualClock
from tests.support.actors import TIMEOUT, fails

pytestmark = pytest.mark.usefixtures("no_leaks")
GIVEN_UP = 70.0  # virtual seconds after which a silent host is one that has ended


class Log(Actor):
    def __init__(self) -> None:
        self.noted: list[Any] = []

    @endpoint
    def note(self, what: Any) -> Any:
        self.noted.append(what)
        return what

    @endpoint
    def read(self) -> list[Any]:
        return self.noted

    @endpoint
    def wait(self, gate: Local[threading.Event]) -> None:
        gate.value.wait(TIMEOUT)

    @endpoint
    def where(self) -> str:
        return this_host()._hosts[0]


class Sender(Actor):
    @endpoint
    def send(self, target: Any, name: str, first: int, count: int) -> None:
        for number in range(first, first + count):
            target.note.broadcast((name, number))

    @endpoint
    def ask(self, target: Any, what: Any) -> Any:
        return target.note.call_one(what).get(TIMEOUT)


class Owner(Actor):
    """Has a mesh of its own on other hosts."""

    @endpoint
    def own(self, hosts: Any) -> Any:
        self.mesh = hosts.spawn_procs().spawn("owned", Log)
        self.mesh.note.call(0).get(TIMEOUT)
        return self.mesh


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(autouse=True, params=["tree", "one by one"])
def ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Meshes here are small; casts to them go either way."""
    few = 2 if request.param == "tree" else 1000
    with monarch.configured(tree_casts_from=few, tree_calls_from=few):
        yield


@pytest.fixture
def hosts(clock: VirtualClock) -> Iterator[InProcessCluster]:
    """A cluster of three further hosts, in virtual time."""
    with InProcessCluster(hosts=3, clock=clock) as cluster:
        yield cluster


def logs(cluster: InProcessCluster, **per_host: int) -> Any:
    return cluster.hosts.spawn_procs(per_host or None).spawn("logs", Log)


def taken_failures(cluster: InProcessCluster, count: int, handled: bool = False) -> list[list[int]]:
    return sorted(cluster.next_failure(handled=handled).crashed_ranks for _ in range(count))


def processes(cluster: InProcessCluster) -> list[str]:
    """Returns those that live on the further hosts."""
    return [address for address in cluster.statistics() if ".h" in address]


# --- messages


def test_every_adverb_reaches_every_host(hosts: InProcessCluster) -> None:
    mesh = logs(hosts, gpus=2)
    assert dict(mesh.extent) == {"hosts": 3, "gpus": 2}
    assert mesh.note.call("a").get(TIMEOUT).values() == ["a"] * 6
    mesh.note.broadcast("b")
    assert sorted(future.get(TIMEOUT) for future in mesh.note.stream("c")) == ["c"] * 6
    assert mesh.note.choose("d").get(TIMEOUT) == "d"
    assert mesh.slice(hosts=1, gpus=1).note.call_one("e").get(TIMEOUT) == "e"
    noted = mesh.read.call().get(TIMEOUT).values()
    assert [what for rank in noted for what in rank if what in "de"].count("d") == 1
    assert all([what for what in rank if what in "abc"] == ["a", "b", "c"] for rank in noted)


def test_the_host_of_an_actor_is_where_it_was_spawned(hosts: InProcessCluster) -> None:
    found = logs(hosts).where.call().get(TIMEOUT).values()
    assert found == list(hosts.hosts._hosts)
    assert this_host()._hosts[0] not in found


def test_actors_of_two_hosts_call_each_other(hosts: InProcessCluster) -> None:
    mesh = logs(hosts)
    senders = hosts.hosts.spawn_procs().spawn("senders", Sender)
    for one in range(3):
        for other in range(3):
            asked = senders.slice(hosts=one).ask.call_one(mesh.slice(hosts=other), (one, other))
            assert asked.get(TIMEOUT) == (one, other)


def test_the_hosts_are_attached(hosts: InProcessCluster) -> None:
    assert hosts.hosts.initialized.get(TIMEOUT) is True


def test_a_frame_between_hosts_is_seen_in_its_envelope(hosts: InProcessCluster) -> None:
    mesh = logs(hosts)
    mesh.note.call(0).get(TIMEOUT)
    seen = hosts.expect("Call", hosts.address_of("agent"), hosts.address_of("agent", host=2))
    mesh.slice(hosts=2).note.call_one(1).get(TIMEOUT)
    seen.wait()


# --- links


def test_a_link_that_is_cut_loses_repeats_and_reorders_nothing(hosts: InProcessCluster, clock: VirtualClock) -> None:
    log = logs(hosts).slice(hosts=1)
    assert log.note.call_one(-1).get(TIMEOUT) == -1
    clock.advance(1)  # a connection that is no longer young is dialled anew at once
    answers = [log.note.call_one(number) for number in range(500)]
    assert hosts.cut_hosts("client", 1) == 1
    answers += [log.note.call_one(number) for number in range(500, 1000)]
    assert [answer.get(TIMEOUT) for answer in answers] == list(range(1000))
    assert log.read.call_one().get(TIMEOUT) == list(range(-1, 1000))


def test_what_actors_send_each_other_is_in_order_over_cuts(hosts: InProcessCluster, clock: VirtualClock) -> None:
    log = logs(hosts).slice(hosts=2)
    senders = hosts.hosts.spawn_procs().spawn("senders", Sender)
    for burst in range(8):
        done = [senders.slice(hosts=host).send.call_one(log, f"h{host}", burst * 100, 100) for host in range(3)]
        hosts.cut_hosts(0, 2)
        hosts.cut_hosts(1, 2)
        hosts.cut_hosts("client", 2)
        clock.advance(0.2)
        for future in done:
            future.get(TIMEOUT)
    for host in range(3):  # behind everything that was sent
        assert senders.slice(hosts=host).ask.call_one(log, "done").get(TIMEOUT) == "done"
    noted = log.read.call_one().get(TIMEOUT)
    for host in range(3):
        assert [what[1] for what in noted if what[0] == f"h{host}"] == list(range(800))


def test_hosts_that_are_parted_are_suspected_and_lose_nothing(hosts: InProcessCluster, clock: VirtualClock) -> None:
    mesh = logs(hosts)
    mesh.note.call(0).get(TIMEOUT)
    with hosts.part_hosts("client", 1):
        limited = mesh.note.with_timeout(5).call(1)
        unlimited = mesh.slice(hosts=1).note.call_one(2)
        for host in (0, 2):
            assert mesh.slice(hosts=host).read.call_one().get(TIMEOUT) == [0, 1]
        clock.advance(0.1)  # agents of a tree keep answers for a moment
        hosts.settle()
        clock.advance(4.9)
        with pytest.raises(
            TimeoutError, match=r"from rank\(s\) 1; .*The host of rank\(s\) 1 is suspected: .*the connection was cut"
        ):
            limited.get(TIMEOUT)
        assert "pending" in repr(unlimited)
        assert mesh.slice(hosts=2).note.call_one(2).get(TIMEOUT) == 2
    clock.advance(3)
    assert unlimited.get(TIMEOUT) == 2
    assert mesh.slice(hosts=1).read.call_one().get(TIMEOUT) == [0, 1, 2]
    late = mesh.slice(hosts=1).wait.with_timeout(1).call_one(gate := Local(threading.Event()))
    clock.advance(1)
    assert "suspected" not in str(late.exception(TIMEOUT))
    gate.value.set()


def test_silence_between_hosts_breaks_the_connection_and_not_the_link(
    hosts: InProcessCluster, clock: VirtualClock
) -> None:
    mesh = logs(hosts)
    mesh.note.call(0).get(TIMEOUT)
    there, here = hosts.address_of("agent", host=0), hosts.address_of("agent")
    with hosts.network.hold(here, there), hosts.network.hold(there, here):
        answers = [mesh.slice(hosts=0).note.call_one(number) for number in range(1, 10)]
        clock.advance(10)
        assert all("pending" in repr(answer) for answer in answers)
    clock.advance(10)
    assert [answer.get(TIMEOUT) for answer in answers] == list(range(1, 10))
    assert mesh.slice(hosts=0).read.call_one().get(TIMEOUT) == list(range(10))


def test_links_are_spared_rules_that_no_socket_keeps(hosts: InProcessCluster) -> None:
    mesh = logs(hosts)
    agents = [hosts.address_of("agent", host=host) for host in ("client", 0, 1, 2)]
    for one in agents:
        for other in agents:
            hosts.network.drop(1.0, one, other)
            hosts.network.duplicate(1.0, one, other)
    for number in range(5):
        assert mesh.note.call(number).get(TIMEOUT).values() == [number] * 3
    assert mesh.slice(hosts=0).read.call_one().get(TIMEOUT) == list(range(5))


# --- death


def test_a_host_without_power_is_noticed_by_its_silence(hosts: InProcessCluster, clock: VirtualClock) -> None:
    mesh = logs(hosts, gpus=2)
    mesh.note.call(0).get(TIMEOUT)
    hosts.kill_host(1)
    answer = mesh.note.call(1)
    clock.advance(5)
    assert "pending" in repr(answer)
    limit = clock.now() + GIVEN_UP
    while "pending" in repr(answer) and clock.now() < limit:  # were it not looked at for 10 s, it would be a fault
        clock.advance(1)
    fails(answer, r"channel_reconnect_timeout.*that machine has no power")
    assert taken_failures(hosts, 2, handled=True) == [[2], [3]]
    assert mesh.slice(hosts=0).note.call(2).get(TIMEOUT).values() == [2, 2]
    assert mesh.slice(hosts=2).note.call(2).get(TIMEOUT).values() == [2, 2]
    fails(mesh.slice(hosts=1).note.call(3))


def test_a_host_whose_agent_is_killed_is_noticed_soon(hosts: InProcessCluster, clock: VirtualClock) -> None:
    mesh = logs(hosts)
    mesh.note.call(0).get(TIMEOUT)
    answer = mesh.slice(hosts=1).wait.call_one(gate := Local(threading.Event()))
    hosts.kill_agent(1)
    clock.advance(3)
    fails(answer, r"nobody listens at .*h1 any more")
    gate.value.set()
    assert taken_failures(hosts, 1, handled=True) == [[1]]
    assert mesh.slice(hosts=2).note.call_one(2).get(TIMEOUT) == 2


@pytest.mark.parametrize("end", ["kill_host", "kill_agent", "part"])
def test_what_a_dead_hosts_actors_own_elsewhere_ends(end: str, hosts: InProcessCluster, clock: VirtualClock) -> None:
    owner = hosts.hosts.slice(hosts=0).spawn_procs().spawn("owner", Owner)
    others = hosts.hosts.slice(hosts=slice(1, 3))
    owned = owner.own.call_one(others).get(TIMEOUT)
    assert len(processes(hosts)) == 3
    if end == "part":
        for other in ("client", 1, 2):
            hosts.part_hosts(0, other)
    else:
        getattr(hosts, end)(0)
    clock.advance(GIVEN_UP)
    assert taken_failures(hosts, 1) == [[0]]
    fails(owned.note.call(1))
    hosts.settle()
    assert processes(hosts) == []


def test_who_waits_on_another_host_hears_of_a_hosts_death(hosts: InProcessCluster, clock: VirtualClock) -> None:
    log = logs(hosts).slice(hosts=0)
    sender = hosts.hosts.slice(hosts=1).spawn_procs().spawn("sender", Sender)
    sender.ask.call_one(log, 0).get(TIMEOUT)
    hosts.kill_agent(0)
    asked = sender.ask.call_one(log, 1)
    clock.advance(GIVEN_UP)
    error = asked.exception(TIMEOUT)
    assert "SupervisionError" in str(error)
    assert taken_failures(hosts, 1) == [[0]]


def test_who_calls_a_dead_host_for_the_first_time_hears_of_it_soon(
    hosts: InProcessCluster, clock: VirtualClock
) -> None:
    log = logs(hosts).slice(hosts=0)
    sender = hosts.hosts.slice(hosts=1).spawn_procs().spawn("sender", Sender)
    log.note.call_one(0).get(TIMEOUT)
    hosts.kill_agent(0)
    under_way = hosts.expect("Watch", hosts.address_of(sender))
    asked = sender.ask.call_one(log, 1)
    under_way.wait()
    hosts.settle()
    clock.advance(2)
    assert "SupervisionError" in str(asked.exception(TIMEOUT))
    assert taken_failures(hosts, 1) == [[0]]


def test_an_actor_is_told_once_of_each_rank_on_a_dead_host(hosts: InProcessCluster, clock: VirtualClock) -> None:
    class Boss(Actor):
        def __init__(self, heard: Port[list[int]]) -> None:
            self.heard = heard

        @endpoint
        def hire(self, hosts: Any) -> Any:
            self.mesh = hosts.spawn_procs({"gpus": 2}).spawn("logs", Log)
            return self.mesh.note.call(0).get(TIMEOUT).values()

        def __supervise__(self, failure: MeshFailure) -> bool:
            self.heard.send(failure.crashed_ranks)
            return True

    port, receiver = Channel[list[int]].open()
    boss = hosts.hosts.slice(hosts=2).spawn_procs().spawn("boss", Boss, port)
    assert boss.hire.call_one(hosts.hosts.slice(hosts=slice(0, 2))).get(TIMEOUT) == [0] * 4
    hosts.kill_host(1)
    clock.advance(GIVEN_UP)
    assert sorted(receiver.recv().get(TIMEOUT) for _ in range(2)) == [[2], [3]]
    hosts.settle()
    clock.advance(GIVEN_UP)
    assert "pending" in repr(receiver.recv())


# --- processes of other hosts


def test_a_process_of_another_host_is_killed_and_restarted(hosts: InProcessCluster) -> None:
    procs = hosts.hosts.spawn_procs()
    mesh = procs.spawn("logs", Log)
    mesh.note.call(0).get(TIMEOUT)
    hosts.kill(mesh, 1)
    assert taken_failures(hosts, 1) == [[1]]
    fails(mesh.note.call(1), "sig=9")
    procs.restart(failed=True).get(TIMEOUT)
    mesh.restart(failed=True).get(TIMEOUT)
    assert mesh.note.call(2).get(TIMEOUT).values() == [2, 2, 2]
    assert mesh.slice(hosts=1).read.call_one().get(TIMEOUT) == [2]


def test_a_process_of_another_host_that_is_stopped_is_suspected(hosts: InProcessCluster, clock: VirtualClock) -> None:
    mesh = logs(hosts)
    mesh.note.call(0).get(TIMEOUT)
    hosts.stop_process(mesh, 2)
    answer = mesh.note.with_timeout(1).call(1)
    hosts.settle()
    clock.advance(1)
    fails(answer, r"The process of rank\(s\) 2 is suspected: .*SIGSTOP", error=TimeoutError)
    hosts.continue_process(mesh, 2)
    assert mesh.read.call().get(TIMEOUT).values() == [[0, 1]] * 3


def test_hosts_can_be_shut_down(hosts: InProcessCluster) -> None:
    part = hosts.hosts.slice(hosts=slice(1, 3))
    for mesh in (hosts.hosts, part):
        mesh.spawn_procs().spawn("logs", Log).note.call(0).get(TIMEOUT)
    hosts.hosts.shutdown().get(TIMEOUT)
    assert processes(hosts) == []
    for mesh in (hosts.hosts, part):
        for use in (mesh.spawn_procs, lambda mesh=mesh: mesh.initialized):
            with pytest.raises(RuntimeError, match="shut down"):
                use()
    with pytest.raises(ValueError, match="host 0 has ended already"):
        hosts.kill_host(0)


@pytest.mark.parametrize("first", [0, 1])
def test_hosts_that_end_while_they_are_shut_down_are_told_to_nobody(
    first: int, hosts: InProcessCluster, clock: VirtualClock
) -> None:
    """A job that is killed while an actor hangs: its scheduler ends the hosts before their processes have ended."""
    mesh = hosts.hosts.slice(hosts=slice(first, 3)).spawn_procs().spawn("logs", Log)
    gate = threading.Event()
    mesh.wait.broadcast(Local(gate))
    hosts.settle()
    down = hosts.hosts.shutdown()
    for host in range(first, 3):  # they wait for the actor that hangs
        hosts.kill_agent(host)
    clock.advance(GIVEN_UP)
    down.get(TIMEOUT)
    gate.set()  # leaving the cluster raises what nobody was told of


def test_meshes_of_hosts_can_be_stopped(hosts: InProcessCluster) -> None:
    for mesh in (hosts.hosts, hosts.hosts.slice(hosts=slice(1, 3))):
        mesh.spawn_procs().spawn("logs", Log).note.call(0).get(TIMEOUT)
    hosts.hosts.stop().get(TIMEOUT)
    assert processes(hosts) == []


def test_a_mesh_that_is_spawned_as_its_hosts_are_stopped_is_stopped_as_well(
    hosts: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawning = hosts.proc.mesh.spawning
    spawn_procs = spawning.spawn_procs

    def stopped_meanwhile(*args: Any) -> Any:
        hosts.hosts.stop().get(TIMEOUT)
        return spawn_procs(*args)

    monkeypatch.setattr(spawning, "spawn_procs", stopped_meanwhile)
    late = hosts.hosts.slice(hosts=1).spawn_procs()
    with pytest.raises(RuntimeError, match="already been stopped"):
        late.spawn("logs", Log)
    late.stop().get(TIMEOUT)
    assert processes(hosts) == []


def test_meshes_that_were_stopped_are_not_kept_for_the_end_of_their_hosts(hosts: InProcessCluster) -> None:
    for _ in range(3):
        hosts.hosts.spawn_procs().stop().get(TIMEOUT)
    living = hosts.hosts.spawn_procs()
    session = hosts.hosts._session
    assert session is not None and [owned.spec for owned in session._spawned] == [living._spec]


# --- a client that reaches the hosts through one of them


@pytest.fixture
def behind(clock: VirtualClock) -> Iterator[InProcessCluster]:
    with InProcessCluster(hosts=3, gateway=0, clock=clock) as cluster:
        yield cluster


def test_a_client_behind_a_gateway_reaches_all_and_is_reached(behind: InProcessCluster, clock: VirtualClock) -> None:
    mesh = logs(behind)
    assert mesh.note.call(0).get(TIMEOUT).values() == [0, 0, 0]
    assert [behind.cut_hosts("client", host) for host in range(3)] == [1, 0, 0]
    clock.advance(1)
    assert mesh.note.call(1).get(TIMEOUT).values() == [1, 1, 1]
    here = this_host().spawn_procs().spawn("here", Log)
    senders = behind.hosts.spawn_procs().spawn("senders", Sender)
    assert senders.ask.call(here, 2).get(TIMEOUT).values() == [2, 2, 2]


def test_a_cut_behind_the_gateway_loses_nothing(behind: InProcessCluster, clock: VirtualClock) -> None:
    log = logs(behind).slice(hosts=2)
    log.note.call_one(-1).get(TIMEOUT)
    answers = [log.note.call_one(number) for number in range(100)]
    assert behind.cut_hosts(0, 2) == 1
    answers += [log.note.call_one(number) for number in range(100, 200)]
    clock.advance(1)
    assert [answer.get(TIMEOUT) for answer in answers] == list(range(200))
    assert log.read.call_one().get(TIMEOUT) == list(range(-1, 200))


def test_the_gateway_tells_of_the_end_of_a_host_behind_it(behind: InProcessCluster, clock: VirtualClock) -> None:
    mesh = logs(behind)
    mesh.note.call(0).get(TIMEOUT)
    behind.kill_agent(2)
    clock.advance(GIVEN_UP)
    fails(mesh.note.call(1))
    assert taken_failures(behind, 1) == [[2]]
    assert mesh.slice(hosts=1).note.call_one(2).get(TIMEOUT) == 2


def test_the_end_of_the_gateway_is_the_end_of_all_behind_it(behind: InProcessCluster, clock: VirtualClock) -> None:
    mesh = logs(behind)
    mesh.note.call(0).get(TIMEOUT)
    behind.kill_agent(0)
    clock.advance(GIVEN_UP)
    assert taken_failures(behind, 3) == [[0], [1], [2]]
    behind.settle()
    clock.advance(GIVEN_UP)  # those behind it have lost the client, who owned what they ran
    assert processes(behind) == []


# --- mistakes


def test_a_cluster_without_further_hosts_says_so(cluster: InProcessCluster) -> None:
    with pytest.raises(RuntimeError, match=r"hosts=3"):
        _ = cluster.hosts
    with pytest.raises(ValueError, match="index of one of the 0 hosts, got 0"):
        cluster.cut_hosts("client", 0)


def test_hosts_that_cannot_be_killed(hosts: InProcessCluster) -> None:
    with pytest.raises(ValueError, match="the test runs there"):
        hosts.kill_host("client")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="index of one of the 3 hosts, got 3"):
        hosts.kill_agent(3)
    hosts.kill_agent(2)
    with pytest.raises(ValueError, match="host 2 has ended already"):
        hosts.kill_host(2)


@pytest.mark.parametrize("given", [{"hosts": -1}, {"gateway": 0}, {"hosts": 2, "gateway": 2}])
def test_numbers_of_hosts_that_cannot_be(given: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="hosts must be 0 or more"):
        InProcessCluster(**given)  # type: ignore[arg-type]


def test_a_mesh_looks_at_its_class_once_not_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from monarch._mesh.meshes import owned

    looked, needs_loop = [], owned.needs_loop
    monkeypatch.setattr(owned, "needs_loop", lambda cls: looked.append(cls) or needs_loop(cls))
    with InProcessCluster(hosts=1) as cluster:
        logs(cluster, gpus=50)
    assert looked.count(Log) == 1
