"""`tls://` means that nobody between two hosts can read what they say: seen from between them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch import graph
from monarch.actor import Actor, attach_to_workers, endpoint
from monarch.config import configure
from monarch.graph import InputNode
from monarch.rdma import RDMABuffer
from monarch.tools.certs import Certificates, make_certificates
from tests.support.hosts import TIMEOUT, Hosts
from tests.support.tiers import first_of, full

pytestmark = pytest.mark.procs

SECRET = "a long and random text that both sides know"
ARGUMENT = "an argument that nobody else may read"
TLS = ("MONARCH_TLS_CA", "MONARCH_TLS_CERT", "MONARCH_TLS_KEY")

WORKER = """
import os, sys
from monarch.actor import run_worker_loop_forever
at = sys.argv[1]
run_worker_loop_forever(address=at.replace("tcp://", "tls://") if "MONARCH_TLS_CA" in os.environ else at)
"""


class Echo(Actor):
    @endpoint
    def say(self, text: str) -> str:
        return text[::-1]

    @endpoint
    def wrap(self, text: str) -> str:
        return f"<{text}>"

    @endpoint
    def lend(self) -> RDMABuffer:
        self.memory = bytearray(ARGUMENT.encode() * 1000)
        return RDMABuffer(self.memory)

    @endpoint
    def ask(self, other: Any, times: int) -> tuple[str, bytes]:
        """Returns what another host says, over and over, and what is in its memory."""
        for _ in range(times):
            said = other.say.call_one(ARGUMENT).get(TIMEOUT)
        read = bytearray(len(ARGUMENT) * 1000)
        other.lend.call_one().get(TIMEOUT).read_into(read).get(TIMEOUT)
        return said, bytes(read)


class Proxy:
    """Stands between a client and a worker, and keeps all it sees."""

    def __init__(self, to: str) -> None:
        host, _, port = to.removeprefix("tcp://").rpartition(":")
        self._to = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets = contextlib.ExitStack()
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.seen = bytearray()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        try:
            while True:
                client = self._sockets.enter_context(self._listening.accept()[0])
                try:
                    worker = self._sockets.enter_context(socket.create_connection(self._to))
                except OSError:  # it has ended, and whoever dials it shall see that
                    client.close()
                    continue
                for pair in ((client, worker), (worker, client)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()
        except OSError:  # closed
            pass

    def _carry(self, left: socket.socket, right: socket.socket) -> None:
        try:
            while data := left.recv(65536):
                self.seen += data
                right.sendall(data)
            right.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._accepting.join(TIMEOUT)
        self._listening.close()
        self._sockets.close()


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TLS, "MONARCH_SECRET", "MONARCH_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    pytest.importorskip("cryptography")
    return make_certificates(tmp_path_factory.mktemp("certs") / "job")


def with_certificates(made: Certificates) -> dict[str, str]:
    return dict(zip(TLS, map(str, (made.ca, made.certificate, made.private_key)), strict=True))


@pytest.fixture
def proxy(hosts: Hosts, made: Certificates, request: pytest.FixtureRequest) -> Iterator[Proxy]:
    """In front of a worker, which has the secret and, but for `plain`, certificates."""
    env = {"MONARCH_SECRET": SECRET}
    if not hasattr(request, "param"):
        env |= with_certificates(made)
    proxy = Proxy(hosts.start_tcp(WORKER, env).address)
    yield proxy
    proxy.close()


def ask(proxy: Proxy, scheme: str, **credentials: Any) -> None:
    mesh = attach_to_workers(workers=[f"worker-0@{scheme}://{proxy.address}"], **credentials)
    assert mesh.initialized.get(TIMEOUT) is True
    echo = mesh.spawn_procs().spawn("echo", Echo)
    assert echo.say.call_one(ARGUMENT).get(TIMEOUT) == ARGUMENT[::-1]
    mesh.shutdown().get(TIMEOUT)


@full
@pytest.mark.parametrize("proxy", ["plain"], indirect=True)
def test_a_client_without_certificates_sends_nothing_to_a_tls_address(proxy: Proxy) -> None:
    """Both sides have the secret, so over tcp:// they would understand each other."""
    with pytest.raises(ValueError, match=r"wants TLS, and no certificates are given: nothing is sent there in plain"):
        ask(proxy, "tls", secret=SECRET)
    assert proxy.seen == b""
    ask(proxy, "tcp", secret=SECRET)
    assert ARGUMENT.encode() in proxy.seen  # as the proxy would have seen it


@pytest.mark.parametrize("way", first_of(["arguments", "environment"]))
def test_with_certificates_nothing_can_be_read(
    proxy: Proxy, made: Certificates, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"ca": made.ca, "certificate": made.certificate, "private_key": made.private_key}
    if way == "environment":
        for name, path in zip(TLS, given.values(), strict=True):
            monkeypatch.setenv(name, str(path))
        given = {}
    ask(proxy, "tls", secret=SECRET, **given)
    for text in (ARGUMENT, ARGUMENT[::-1], "Echo", "monarch", "MNRCH"):
        assert text.encode() not in proxy.seen
    assert proxy.seen.startswith(b"\x16\x03")


@full
def test_nor_what_workers_say_to_each_other(hosts: Hosts, proxy: Proxy, made: Certificates) -> None:
    """Also when they say so much that plain hosts would make links and streams of their own."""
    configure(direct_after=20)
    other = hosts.start_tcp(WORKER, {"MONARCH_SECRET": SECRET} | with_certificates(made))
    mesh = attach_to_workers(
        workers=[other.address.replace("tcp://", "tls://"), f"tls://{proxy.address}"], secret=SECRET, ca=made.ca,
        certificate=made.certificate, private_key=made.private_key,
    )  # fmt: skip
    echos = mesh.spawn_procs().spawn("echo", Echo)
    said, read = echos.slice(hosts=0).ask.call_one(echos.slice(hosts=1), 100).get(TIMEOUT)
    assert (said, read) == (ARGUMENT[::-1], ARGUMENT.encode() * 1000)
    assert len(proxy.seen) > 10_000
    for text in (ARGUMENT, ARGUMENT[::-1], "MNRCH"):
        assert text.encode() not in proxy.seen
    mesh.shutdown().get(TIMEOUT)


@full
@pytest.mark.parametrize("proxy", ["plain"], indirect=True)
def test_a_client_with_certificates_does_not_fall_back(proxy: Proxy, made: Certificates) -> None:
    mesh = attach_to_workers(
        workers=[f"tls://{proxy.address}"], secret=SECRET, ca=made.ca, certificate=made.certificate,
        private_key=made.private_key,
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="attach failed") as caught:
        mesh.initialized.get(TIMEOUT)
    assert "certificates, or neither" in str(caught.value)
    assert b"MNRCH" not in proxy.seen[:5]


@full
def test_a_tls_worker_takes_nothing_in_plain(proxy: Proxy) -> None:
    mesh = attach_to_workers(workers=[f"tcp://{proxy.address}"], secret=SECRET)
    with pytest.raises(RuntimeError, match=r"attach failed.*it speaks TLS, and this side has no certificates"):
        mesh.initialized.get(TIMEOUT)


def through(*echos: Any) -> Any:
    with InputNode() as x:
        last: Any = x
        for echo in echos:
            last = echo.wrap.bind(last)
    return graph.compile(last)


@full
def test_the_values_of_a_graph_cannot_be_read_and_strangers_do_not_disturb_it(
    hosts: Hosts, proxy: Proxy, made: Certificates
) -> None:
    """From the client to the hosts, and from one of these to the other: the second is reached through the proxy alone."""
    certificates: Any = {"ca": made.ca, "certificate": made.certificate, "private_key": made.private_key}
    other = hosts.start_tcp(WORKER, {"MONARCH_SECRET": SECRET} | with_certificates(made))
    at = [other.address.replace("tcp://", "tls://"), f"tls://{proxy.address}"]
    mesh = attach_to_workers(workers=at, secret=SECRET, **certificates)
    echos = mesh.spawn_procs().spawn("echo", Echo)
    with through(echos.slice(hosts=0), echos.slice(hosts=1)) as compiled:
        assert compiled.execute(ARGUMENT).get(TIMEOUT) == f"<<{ARGUMENT}>>"
        before = len(proxy.seen)
        large = ARGUMENT * 20_000
        assert compiled.execute(large).get(TIMEOUT) == f"<<{large}>>"
        assert len(proxy.seen) - before > 2 * len(large)  # to the second host, and back to the client
        host, _, port = proxy.address.rpartition(":")
        for said in (b"\1" * 3000, b"\x16\x03\x01\x02\x00" + bytes(600)):
            with socket.create_connection((host, int(port))) as stranger, contextlib.suppress(ConnectionError):
                stranger.sendall(said)
                stranger.settimeout(TIMEOUT)
                answer = b""
                while data := stranger.recv(4096):
                    answer += data
                assert len(answer) < 100
        assert compiled.execute(ARGUMENT).get(TIMEOUT) == f"<<{ARGUMENT}>>"
    for text in (ARGUMENT, ARGUMENT[:12], "MNRCH", "PRIVATE KEY", "monarch stream"):
        assert text.encode() not in proxy.seen
    mesh.shutdown().get(TIMEOUT)


@full
@pytest.mark.parametrize("there", ["no TLS", "another authority"])
def test_a_graph_over_hosts_that_do_not_trust_each_other_is_refused(
    hosts: Hosts, made: Certificates, tmp_path: Path, there: str
) -> None:
    """The client knows both, each as it wants to be known."""
    one = hosts.start_tcp(WORKER, {"MONARCH_SECRET": SECRET} | with_certificates(made))
    theirs = make_certificates(tmp_path / "others")
    other = hosts.start_tcp(
        WORKER, {"MONARCH_SECRET": SECRET} | ({} if there == "no TLS" else with_certificates(theirs))
    )
    meshes = [attach_to_workers(
        workers=[one.address.replace("tcp://", "tls://")], secret=SECRET, ca=made.ca, certificate=made.certificate,
        private_key=made.private_key,
    )]  # fmt: skip
    meshes.append(
        attach_to_workers(workers=[other.address], secret=SECRET)
        if there == "no TLS"
        else attach_to_workers(
            workers=[other.address.replace("tcp://", "tls://")], secret=SECRET, ca=theirs.ca,
            certificate=theirs.certificate, private_key=theirs.private_key,
        )
    )  # fmt: skip
    echos = [mesh.spawn_procs().spawn("echo", Echo) for mesh in meshes]
    for echo in echos:
        with through(echo) as compiled:  # each by itself
            assert compiled.execute(ARGUMENT).get(TIMEOUT) == f"<{ARGUMENT}>"
    for ways in (echos, echos[::-1]):
        with pytest.raises(ValueError, match=r"cannot connect to .*(certificate|TLS).*Use ordinary calls"):
            through(*ways)
    for mesh in meshes:
        mesh.shutdown().get(TIMEOUT)
