"""Meshes over hosts with networks of their own: everything arrives where it should, through trouble and not."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.netns.lab import NAMESPACES, ROOT, Host, Lab
from tests.support.tiers import full

pytestmark = pytest.mark.netns

PORT = 26600
SECRET = "a secret of this job alone, 40 letters.."
SECONDS = 90.0

# A link is suspected after three heartbeats of silence. Where nobody is to die of it, that may happen on a busy machine too.
QUICK = {"HYPERACTOR_SERVER_HEARTBEAT_INTERVAL": "100ms"}
SOON_DEAD = {
    "HYPERACTOR_SERVER_HEARTBEAT_INTERVAL": "300ms",
    "HYPERACTOR_CHANNEL_RECONNECT_TIMEOUT": "1s",
    "HYPERACTOR_MESH_ORPHAN_TIMEOUT": "1s",
}


def secret_of(host: Host) -> dict[str, str]:
    """The environment of who knows it."""
    file = host.folder / "secret"
    file.touch(mode=0o600)
    file.write_text(SECRET)
    return {"MONARCH_SECRET_FILE": str(file)}


def network(host: Host) -> int:
    return os.stat(NAMESPACES / host.namespace).st_ino


def serve(host: Host, env: dict[str, str] | None = None, *options: str, secret: bool = True) -> subprocess.Popen[str]:
    """`monarch worker` there; a client may attach at once."""
    command = host.python("-m", "monarch", "worker", "--address", f"tcp://*:{PORT}", *options)
    return host.popen(command, env=(secret_of(host) if secret else {}) | (env or {}))


def url(address: str) -> str:
    return f"tcp://[{address}]:{PORT}" if ":" in address else f"tcp://{address}:{PORT}"


class Client:
    """programs/client.py on a host."""

    def __init__(self, host: Host, env: dict[str, str] | None = None, *, secret: bool = True) -> None:
        self.host = host
        self.process = host.popen(host.program("client.py"), env=(secret_of(host) if secret else {}) | (env or {}))

    def ask(self, name: str, *arguments: Any) -> Any:
        """The answer; AssertionError when it is an error."""
        self.tell(name, *arguments)
        return self.hear()

    def refused(self, name: str, *arguments: Any) -> str:
        """The error that it is answered with."""
        self.tell(name, *arguments)
        answer = self._answer()
        assert "error" in answer, answer
        return str(answer["error"])

    def tell(self, name: str, *arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        answer = self._answer()
        assert "ok" in answer, answer["error"]
        return answer["ok"]

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the client ended with {self.process.wait(SECONDS)}:\n{self.host.log.read_text()}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def leave(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(SECONDS)


def log_of(stop: int) -> list[str]:
    """Returns what a resident has heard of a load that sent `stop` times."""
    return [f"{kind} {number}" for number in range(stop) for kind in ("cast", "call")]


def until(condition: Callable[[], bool], what: str) -> None:
    """The kernel has no event for what is waited for here."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"in {SECONDS} s never: {what}"
        select.select([], [], [], 0.005)


def connected(host: Host, port: int = PORT) -> bool:
    """Returns whether a program there has an established connection to or from that port."""
    table = Path(f"/proc/{host.pids()[0]}/net/tcp").read_text().splitlines()[1:]
    for row in table:
        _, local, remote, state, *_ = row.split()
        if state == "01" and f"{port:04X}" in (local.split(":")[1], remote.split(":")[1]):
            return True
    return False


@pytest.fixture
def trio(lab: Lab) -> Callable[..., tuple[Client, list[subprocess.Popen[str]]]]:
    """Makes host 0 a client, attached to workers on the two others with two processes each."""

    def make(env: dict[str, str]) -> tuple[Client, list[subprocess.Popen[str]]]:
        workers = [serve(host, env) for host in lab.hosts[1:]]
        client = Client(lab.hosts[0], env)
        assert client.ask("attach", *(url(host.address) for host in lab.hosts[1:])) == {"hosts": 2}
        assert len(client.ask("spawn", 2)) == 4
        return client, workers

    return make


# --- nothing goes wrong


@full
def test_a_mesh_over_eight_hosts() -> None:
    with Lab(hosts=9) as lab:
        there = lab.hosts[1:]
        workers = [serve(host) for host in there]
        client = Client(lab.hosts[0])
        # The third is known by its IPv6 address, to the others as well.
        addresses = [host.address6 if i == 2 else host.address for i, host in enumerate(there)]
        assert client.ask("attach", *map(url, addresses)) == {"hosts": 8}
        where = client.ask("spawn", 4)
        assert [net for net, _, _ in where] == [network(host) for host in there for _ in range(4)]
        assert len({pid for _, pid, _ in where}) == 32
        asked = client.ask("ask_neighbours")
        points = [{"hosts": (host + 1) % 8, "gpus": gpu} for host in range(8) for gpu in range(4)]
        assert asked == [[point, network(there[point["hosts"]])] for point in points]
        client.ask("cast", 0, 50)
        assert client.ask("stream", 50) == [50] * 32
        client.ask("cast", 51, 100)
        wanted = [*(f"cast {n}" for n in range(50)), "call 50", *(f"cast {n}" for n in range(51, 100))]
        assert client.ask("heard") == [wanted] * 32
        client.ask("shutdown")
        assert [worker.wait(SECONDS) for worker in workers] == [0] * 8
        assert client.leave() == 0
        logs = [host.log.read_text().splitlines() for host in lab.hosts]
        assert logs[0] == []
        for log in logs[1:]:
            assert re.fullmatch(
                r"monarch worker: serving as host tcp://\S+:26600 until it is shut down", "\n".join(log)
            )


@pytest.mark.slow
def test_actors_of_several_hosts_that_wait_for_each_other(trio: Any) -> None:
    client, _ = trio({"MONARCH_DEADLOCK_AFTER": "200ms"})
    error = client.refused("ask_each_other")
    assert "DeadlockError: 2 actors wait for each other in a circle" in error


@full
def test_what_is_sent_does_not_wait_for_answers_from_afar(lab: Lab) -> None:
    workers = [serve(host) for host in lab.hosts[1:]]
    proxies = [lab.proxy(host.index, f"127.0.0.1:{PORT}", delay=0.1) for host in lab.hosts[1:]]
    client = Client(lab.hosts[0])
    client.ask("attach", *(f"tcp://{proxy}" for proxy in proxies))
    client.ask("spawn", 2)
    told = client.ask("send_before_answers", 200)
    assert told["answers"] == [[number] for number in range(200)]
    assert told["sent"][0] > 1  # before the first answer; all of them unless the client has to wait for a processor
    client.ask("shutdown")
    assert [worker.wait(SECONDS) for worker in workers] == [0, 0]


@full
def test_a_client_that_reaches_one_host_goes_through_it_to_the_others(lab: Lab) -> None:
    workers = [serve(host) for host in lab.hosts[1:]]
    lab.separate(0, 2)
    client = Client(lab.hosts[0])
    client.ask("go_through", url(lab.hosts[1].address))
    assert client.ask("attach", *(url(host.address) for host in lab.hosts[1:])) == {"hosts": 2}
    assert [net for net, _, _ in client.ask("spawn", 1)] == [network(host) for host in lab.hosts[1:]]
    assert client.ask("call_home") == [network(lab.hosts[0])] * 2
    client.ask("cast", 0, 100)
    assert client.ask("heard") == [[f"cast {number}" for number in range(100)]] * 2
    client.ask("shutdown")
    assert [worker.wait(SECONDS) for worker in workers] == [0, 0]


@pytest.mark.slow
def test_a_client_that_listens(lab: Lab) -> None:
    workers = [serve(host) for host in lab.hosts[1:]]
    client = Client(lab.hosts[0])
    client.ask("listen", f"tcp://{lab.hosts[0].address}:26601")
    client.ask("attach", *(url(host.address) for host in lab.hosts[1:]))
    client.ask("spawn", 1)
    assert client.ask("call_home") == [network(lab.hosts[0])] * 2
    client.ask("shutdown")
    assert [worker.wait(SECONDS) for worker in workers] == [0, 0]


# --- who may speak


@full
def test_who_has_the_wrong_secret_or_none(lab: Lab) -> None:
    worker = serve(lab.hosts[1])
    address = url(lab.hosts[1].address)
    client = Client(lab.hosts[0])
    wrong = client.refused("attach", address, {"secret": "a secret of some other job, as long"})
    assert f"attach failed: config push failed during attach to {address}" in wrong and "secret" in wrong
    none = Client(lab.hosts[0], secret=False)
    trusting = none.refused("attach", address, {"ca": "trust_all_connections"})
    assert f"attach failed: config push failed during attach to {address}" in trusting and "secret" in trusting
    assert "nothing protects" in none.refused("attach", address)
    # The worker says who it was, and serves those who know it.
    refusal = re.compile(rf"refused {re.escape(lab.hosts[0].address)}.*secret")
    until(lambda: len(refusal.findall(lab.hosts[1].log.read_text())) >= 2, "the worker tells of both")
    assert SECRET not in lab.hosts[1].log.read_text() + lab.hosts[0].log.read_text() + wrong + trusting
    assert client.ask("attach", address) == {"hosts": 1}
    client.ask("shutdown")
    assert worker.wait(SECONDS) == 0


@full
def test_hosts_that_show_each_other_certificates(lab: Lab) -> None:
    pytest.importorskip("cryptography", reason="monarch certs needs it")
    folder = lab.hosts[0].folder / "certs"
    names = [part for host in lab.hosts[1:] for part in ("--host", host.address)]
    lab.hosts[0].run(lab.hosts[0].python("-m", "monarch", "certs", str(folder), *names))
    files = {"ca": "ca.pem", "certificate": "host.pem", "private_key": "host-key.pem"}
    pems = {name: str(folder / file) for name, file in files.items()}
    variables = ("MONARCH_TLS_CA", "MONARCH_TLS_CERT", "MONARCH_TLS_KEY")
    tls = dict(zip(variables, pems.values(), strict=True))
    one, two = lab.hosts[1:]
    workers = [
        serve(one, tls, secret=False),
        # The other is told by arguments.
        serve(two, {}, *(f"--{name.replace('_', '-')}={file}" for name, file in pems.items()), secret=False),
    ]
    client = Client(lab.hosts[0], secret=False)
    assert client.ask("attach", url(one.address), url(two.address), pems) == {"hosts": 2}
    client.ask("spawn", 1)
    assert [net for _, net in client.ask("ask_neighbours")] == [network(two), network(one)]
    # One of another job, and one without a certificate.
    stranger = lab.hosts[0].folder / "others"
    lab.hosts[0].run(lab.hosts[0].python("-m", "monarch", "certs", str(stranger), *names))
    others = {name: str(stranger / file) for name, file in files.items()}
    refused = Client(lab.hosts[0], secret=False).refused("attach", url(one.address), others)
    assert "attach failed" in refused and "certificate" in refused
    refused = Client(lab.hosts[0]).refused("attach", url(one.address))
    assert "attach failed" in refused and "TLS" in refused
    client.ask("shutdown")
    assert [worker.wait(SECONDS) for worker in workers] == [0, 0]


# --- links break under load


@pytest.mark.parametrize(
    ("who", "how"),
    [(1, "drop"), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(1, "down"), (0, "drop"), (0, "down")])],
)
def test_a_link_that_is_cut_and_healed_loses_nothing(lab: Lab, trio: Any, who: int, how: str) -> None:
    client, _ = trio(
        QUICK | {"MONARCH_DIRECT_AFTER": "0"}
    )  # direct connections send nothing while they have nothing to do
    client.ask("begin")
    for _ in range(2):
        client.ask("more", 20)
        lab.cut(who, how)
        # Both sides have given the connection up, and the dialling one looks for another.
        until(lambda: not connected(lab.hosts[1]), "host 1 gives the connection up")
        until(lambda: not connected(lab.hosts[0]) or who == 1, "the client gives its connections up")
        lab.heal(who)
        client.ask("more", 60)
    done = client.ask("end")
    assert (done["wrong"], done["failures"]) == ([], [])
    assert done["answered"] == done["sent"] >= 160
    assert client.ask("heard") == [log_of(done["sent"])] * 4
    assert client.ask("told") == []


@full
def test_a_host_that_was_lost_is_attached_again_before_it_has_noticed(lab: Lab, trio: Any) -> None:
    client, workers = trio(SOON_DEAD | {"HYPERACTOR_MESH_ORPHAN_TIMEOUT": "1h"})
    lost = [pid for net, pid, _ in client.ask("where") if net == network(lab.hosts[1])]
    lab.cut(1, "drop")
    assert "SupervisionError" in client.refused("where")
    assert all(Path(f"/proc/{pid}").exists() for pid in lost)  # for another hour
    lab.heal(1)
    assert client.ask("attach", url(lab.hosts[1].address)) == {"hosts": 1}
    assert [net for net, _, _ in client.ask("spawn", 2)] == [network(lab.hosts[1])] * 2
    client.ask("cast", 0, 100)
    assert client.ask("stream", 100) == [100] * 2
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in lost), "those whose owner gave them up end")
    client.ask("shutdown")
    assert workers[0].wait(SECONDS) == 0


@pytest.mark.slow
def test_a_link_that_is_cut_for_too_long_is_the_end_of_that_host(lab: Lab, trio: Any) -> None:
    client, workers = trio(SOON_DEAD)
    first = [pid for net, pid, _ in client.ask("where") if net == network(lab.hosts[1])]
    client.ask("begin")
    client.ask("more", 20)
    lab.cut(1, "drop")
    done = client.ask("end_when_it_fails")
    assert done["wrong"] == []
    assert done["failures"] and all("SupervisionError" in failure for failure in done["failures"])
    assert all(url(lab.hosts[1].address) in failure for failure in done["failures"])
    # The other host goes on, and has heard all that was sent.
    assert [net for net, _, _ in client.ask("pick", 1, 2)] == [network(lab.hosts[2])] * 2
    assert client.ask("heard") == [log_of(done["sent"])] * 2
    # What was started on the lost host ends by itself; then the host is there for the next.
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in first), "orphans end")
    lab.heal(1)
    assert client.ask("attach", url(lab.hosts[1].address)) == {"hosts": 1}
    assert [net for net, _, _ in client.ask("spawn", 2)] == [network(lab.hosts[1])] * 2
    client.ask("shutdown")
    assert workers[0].wait(SECONDS) == 0
    assert workers[1].poll() is None


@full
def test_a_host_that_only_the_client_has_lost_is_replaced_and_not_believed_any_more() -> None:
    with Lab(hosts=4) as lab:
        env = SOON_DEAD | {"HYPERACTOR_MESH_ORPHAN_TIMEOUT": "1h"}
        workers = [serve(host, env) for host in lab.hosts[1:]]
        client = Client(lab.hosts[0], env)
        client.ask("attach", url(lab.hosts[1].address), url(lab.hosts[2].address))
        lost = [pid for net, pid, _ in client.ask("spawn", 1) if net == network(lab.hosts[1])]
        client.ask("haunt")
        until(
            lambda: client.ask("heard_of_ghosts")[0] > 500, "what is said often goes over a link of the two processes"
        )
        lab.separate(0, 1)
        client.ask("fault")
        before = client.ask("heard_of_ghosts")
        until(lambda: client.ask("heard_of_ghosts") > before, "the other host hears them still")
        assert client.ask("replace", url(lab.hosts[3].address)) == [0]
        silent = client.ask("heard_of_ghosts")
        assert all(Path(f"/proc/{pid}").exists() for pid in lost)  # for another hour
        assert [net for net, _, _ in client.ask("restart")] == [network(lab.hosts[3]), network(lab.hosts[2])]
        assert [net for _, net in client.ask("ask_neighbours")] == [network(lab.hosts[2]), network(lab.hosts[3])]
        lab.rejoin(0, 1)
        assert client.ask("stream", 100) == [100] * 2
        assert client.ask("heard_of_ghosts") == silent
        assert all(Path(f"/proc/{pid}").exists() for pid in lost)
        client.ask("shutdown")
        assert workers[1].wait(SECONDS) == workers[2].wait(SECONDS) == 0


@full
@pytest.mark.parametrize("apart", [(0, 1), (1, 2)])
def test_a_graph_over_hosts_waits_for_a_short_cut_and_ends_with_a_long_one(
    lab: Lab, trio: Any, apart: tuple[int, int]
) -> None:
    """Cuts the client from a host, and two hosts that the client both reaches from each other."""
    client, _ = trio(SOON_DEAD | {"HYPERACTOR_CHANNEL_RECONNECT_TIMEOUT": "3s"})
    client.ask("execute", 0, 1, 0)
    client.ask("more_executions", 100)
    lab.separate(*apart)
    lab.rejoin(*apart)
    client.ask("more_executions", 100)
    began = time.monotonic()
    lab.separate(*apart)
    done = client.ask("end_of_graph")
    assert time.monotonic() - began < 30
    assert done["wrong"] == []
    if 0 in apart:
        assert "SupervisionError" in done["failure"]
        assert url(lab.hosts[1].address) in done["failure"]
    else:
        addresses = [url(host.address) for host in lab.hosts[1:]]
        assert done["failure"].startswith("ConnectionError: the graph has ended: the connection between ")
        assert all(address in done["failure"] for address in addresses)
        lab.rejoin(*apart)
        client.ask("execute", 0, 1, 0)
        client.ask("more_executions", 100)


# --- hosts die under load


@full
@pytest.mark.parametrize("what", ["agent", "host"])
def test_a_graph_over_a_host_that_is_killed_ends_and_is_compiled_anew_on_the_other(
    lab: Lab, trio: Any, what: str
) -> None:
    client, _ = trio(QUICK)
    net, _, agent = client.ask("where")[0]
    assert net == network(lab.hosts[1])
    client.ask("execute", 1, 0, 1)
    client.ask("more_executions", 100)
    if what == "agent":
        os.kill(agent, signal.SIGKILL)
    else:
        lab.hosts[1].kill()
    done = client.ask("end_of_graph")
    assert done["wrong"] == []
    assert "SupervisionError" in done["failure"]
    assert url(lab.hosts[1].address) in done["failure"]
    client.ask("execute", 1)
    client.ask("more_executions", 100)


@pytest.mark.parametrize("what", ["agent", pytest.param("host", marks=pytest.mark.slow)])
def test_a_host_that_is_killed_is_told_of_and_the_others_go_on(lab: Lab, trio: Any, what: str) -> None:
    client, workers = trio(QUICK)
    net, _, agent = client.ask("where")[0]
    assert net == network(lab.hosts[1])
    client.ask("begin")
    client.ask("more", 20)
    if what == "agent":
        os.kill(agent, signal.SIGKILL)
    else:
        lab.hosts[1].kill()
    done = client.ask("end_when_it_fails")
    assert done["wrong"] == []
    assert done["failures"] and all("SupervisionError" in failure for failure in done["failures"])
    assert all(url(lab.hosts[1].address) in failure for failure in done["failures"])
    assert [net for net, _, _ in client.ask("pick", 1, 2)] == [network(lab.hosts[2])] * 2
    assert client.ask("heard") == [log_of(done["sent"])] * 2
    if what == "agent":
        assert workers[0].wait(SECONDS) == 1
        assert f"the host agent of {url(lab.hosts[1].address)}" in lab.hosts[1].log.read_text()
    until(lambda: not lab.hosts[1].pids(), "nothing is left on that host")
    # Another worker there is another host, at the same address.
    again = serve(lab.hosts[1], QUICK)
    assert client.ask("attach", url(lab.hosts[1].address)) == {"hosts": 1}
    assert [net for net, _, _ in client.ask("spawn", 1)] == [network(lab.hosts[1])]
    client.ask("shutdown")
    assert again.wait(SECONDS) == 0


@full
@pytest.mark.parametrize("how", ["kill", pytest.param("cut", marks=pytest.mark.slow)])
def test_an_inner_host_of_a_tree_dies_while_casts_go_down_it(how: str) -> None:
    env = SOON_DEAD | {
        "HYPERACTOR_MESH_MAX_CAST_FANOUT": "2",
        "MONARCH_TREE_CASTS_FROM": "2",
        "MONARCH_TREE_CALLS_FROM": "2",
    }
    with Lab(hosts=8) as lab:
        there = lab.hosts[1:]
        for host in there:
            serve(host, env)
        client = Client(lab.hosts[0], env)
        client.ask("attach", *(url(host.address) for host in there))
        client.ask("spawn", 1)
        # Two parts of the seven: the first of them, with three hosts below it, dies.
        client.ask("begin_casts", 1)
        client.ask("more_casts", 200)
        if how == "kill":
            there[0].kill()
        else:
            lab.cut(1, "drop")
        assert url(there[0].address) in client.ask("fault")
        client.ask("more_casts", 200)
        sent = client.ask("end_casts")
        client.ask("pick", 1, 7)
        assert client.ask("heard") == [[f"cast {number}" for number in range(sent)]] * 6
        client.ask("cast", sent, sent + 10)
        assert client.ask("heard") == [[f"cast {number}" for number in range(sent + 10)]] * 6


@full
def test_two_hosts_that_cannot_reach_each_other_are_served_all_the_same(lab: Lab) -> None:
    chain = {"HYPERACTOR_MESH_MAX_CAST_FANOUT": "1", "MONARCH_TREE_CASTS_FROM": "2", "MONARCH_TREE_CALLS_FROM": "2"}
    env = SOON_DEAD | chain
    for host in lab.hosts[1:]:
        serve(host, env)
    client = Client(lab.hosts[0], env)
    client.ask("attach", *(url(host.address) for host in lab.hosts[1:]))
    client.ask("spawn", 1)
    # Casts to the second host go through the first, which cannot reach it any more; the client can reach both.
    client.ask("begin_casts", 1)
    client.ask("more_casts", 100)
    lab.separate(1, 2)
    client.ask("more_casts", 100)
    sent = client.ask("end_casts")
    client.ask("cast", sent, sent + 10)
    assert client.ask("heard") == [[f"cast {number}" for number in range(sent + 10)]] * 2


# --- a program of users


@pytest.mark.slow
def test_the_ddp_example_over_three_hosts_learns_what_it_does_on_one(lab: Lab) -> None:
    pytest.importorskip("torch", reason="the example needs torch")

    # torch looks up the names of its connections: nobody is there to ask, and that is told at once.
    for server in re.findall(r"^nameserver\s+([0-9.]+)$", Path("/etc/resolv.conf").read_text(), re.MULTILINE):
        for host in lab.hosts:
            host.run(["ip", "route", "replace", "prohibit", server])

    def train(*options: str, env: dict[str, str] | None = None) -> list[str]:
        script = str(ROOT / "examples" / "ddp.py")
        command = lab.hosts[0].python(script, "--steps", "6", "--device", "cpu", *options)
        return lab.hosts[0].run(command, env=env, timeout=300).stdout.splitlines()

    for host in lab.hosts:
        serve(host)
    there = train("--procs", "1", "--workers", *(url(host.address) for host in lab.hosts), env=secret_of(lab.hosts[0]))
    here = train("--procs", "3")
    assert there[0].startswith("3 ranks on cpu, ")
    # The same ranks read the same text, and gloo adds in the same order: the losses are equal, and so are the parameters.
    kept = re.compile(r"\d+ ranks on|train loss|val   loss|rank \d: parameters|parameters equal")
    assert [line for line in there if kept.match(line)] == [line for line in here if kept.match(line)]


@pytest.mark.slow
def test_distributed_tensors_over_two_hosts_learn_what_one_process_learns(lab: Lab) -> None:
    pytest.importorskip("torch", reason="the example needs torch")
    for server in re.findall(r"^nameserver\s+([0-9.]+)$", Path("/etc/resolv.conf").read_text(), re.MULTILINE):
        for host in lab.hosts:
            host.run(["ip", "route", "replace", "prohibit", server])
    for host in lab.hosts[1:]:
        serve(host)
    command = lab.hosts[0].python(
        str(ROOT / "examples" / "data_parallel.py"), "--workers", *(url(host.address) for host in lab.hosts[1:])
    )
    printed = lab.hosts[0].run(command, env=secret_of(lab.hosts[0]), timeout=300).stdout
    assert "on 4 processes" in printed
    found = re.search(r"largest difference of \d+ losses: (\S+)", printed)
    assert found is not None
    assert float(found[1]) <= 1e-5
