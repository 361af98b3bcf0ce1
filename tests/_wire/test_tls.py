"""TLS under connections between hosts: the socket by itself, and with listener, dialler and StreamConnection."""

from __future__ import annotations

import _ssl
import ctypes
import gc
import hashlib
import logging
import random
import select
import shutil
import socket
import ssl
import subprocess
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from monarch._runtime import log_thread
from monarch._runtime.loop import start_thread
from monarch._wire import frame
from monarch._wire.auth import Secret
from monarch._wire.frame import Frame
from monarch._wire.host_address import parse, parse_dial
from monarch._wire.transport import stream, tls
from monarch._wire.transport.base import DialFailed
from monarch._wire.transport.stream import StreamConnection
from monarch._wire.transport.tcp import Accepted, TcpListener, dial
from monarch._wire.transport.tls import TlsSocket
from tests.support.loops import RunningLoop
from tests.support.patience import TIMEOUT

SECRET = Secret("a long and random text")


@dataclass(frozen=True)
class Identity:
    """Paths of PEM files."""

    ca: str
    certificate: str
    private_key: str

    def context(self, server: bool) -> ssl.SSLContext:
        return tls.context(self.ca, self.certificate, self.private_key, server)


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)


def make_job(folder: Path) -> Identity:
    """A CA, and one host's certificate by it."""
    folder.mkdir()
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(folder, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "7", "-subj", "/CN=job")
    openssl(folder, "req", *key, "-keyout", "host.key", "-out", "host.csr", "-subj", "/CN=host")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "7")
    openssl(folder, "x509", "-req", "-in", "host.csr", *signing, "-out", "host.pem")
    return Identity(*(str(folder / name) for name in ("ca.pem", "host.pem", "host.key")))


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Identity, Identity]:
    """Two jobs that know nothing of each other."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl program makes the certificates of these tests, and is not there")
    folder = tmp_path_factory.mktemp("certificates")
    return make_job(folder / "one"), make_job(folder / "two")


@pytest.fixture
def job(jobs: tuple[Identity, Identity]) -> Identity:
    return jobs[0]


# The socket by itself.


class Ends:
    """Two TlsSockets over a socket pair with small buffers, after their handshake."""

    def __init__(
        self, job: Identity, buffer: int = 4096, version: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED
    ) -> None:
        raw = socket.socketpair()
        for one in raw:
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        context = job.context(server=False)
        context.maximum_version = version
        self.here = TlsSocket(raw[0], context, server=False)
        self.there = TlsSocket(raw[1], job.context(server=True), server=True)
        for _ in range(100):
            if self.here.handshake() & self.there.handshake():
                break
        assert self.here.established
        assert self.there.established
        assert self.here.flush()
        assert self.there.flush()

    def close(self) -> None:
        self.here.close()
        self.there.close()


@pytest.fixture
def ends(job: Identity) -> Iterator[Ends]:
    ends = Ends(job)
    yield ends
    ends.close()


def receive(sock: TlsSocket, size: int) -> bytes:
    """Returns what there is, up to `size`."""
    buffer = bytearray(size)
    try:
        return bytes(buffer[: sock.recv_into(buffer)])
    except BlockingIOError:
        return b""


_openssl = ctypes.CDLL(getattr(_ssl, "__file__", None))  # for what Python does not offer


def session(sock: TlsSocket) -> ctypes.c_void_p:
    """OpenSSL's own, which Python keeps behind the object's first member."""
    behind = id(sock._tls._sslobj) + object.__basicsize__ + ctypes.sizeof(ctypes.c_void_p)  # type: ignore[attr-defined]
    return ctypes.c_void_p.from_address(behind)


def new_keys(sock: TlsSocket, count: int, *, answered: bool = False) -> bytes:
    """Returns what orders to take new keys are on the wire. `answered`: the other side is to give new ones too."""
    for _ in range(count):
        assert _openssl.SSL_key_update(session(sock), int(answered)) == 1
        assert _openssl.SSL_do_handshake(session(sock)) == 1
    return sock._out.read()


def data(sock: TlsSocket, count: int) -> bytes:
    for _ in range(count):
        sock._tls.write(b"x")
    return sock._out.read()


def test_bytes_go_both_ways(ends: Ends) -> None:
    assert repr(ends.here) == "<TlsSocket client, TLSv1.3>"
    assert ends.here.send(b"over there") == 10
    assert receive(ends.there, 100) == b"over there"
    assert ends.there.sendmsg([b"over", memoryview(b" "), b"", bytearray(b"here")]) == 9
    assert receive(ends.here, 100) == b"over here"
    assert receive(ends.here, 100) == b""
    assert not ends.here.pending()


def test_what_the_kernel_has_no_room_for_is_not_sent_as_a_whole(ends: Ends) -> None:
    """One byte stays with the caller, so that it goes on waiting for room; and it is not sent twice."""
    data = random.Random(1).randbytes(1 << 20)
    sent = ends.here.send(data)
    assert 0 < sent < len(data)
    assert ends.here.unsent
    with pytest.raises(BlockingIOError):
        ends.here.send(data[sent:])
    received = b""
    while sent < len(data):
        received += receive(ends.there, 100_000)
        try:
            sent += ends.here.send(data[sent:])
        except BlockingIOError:
            continue
    while len(received) < len(data):
        ends.here.flush()
        received += receive(ends.there, 100_000)
    assert received == data
    assert not ends.here.unsent


def test_a_single_byte_is_sent_once(ends: Ends) -> None:
    data = bytes(range(256)) * 400
    received, sent = b"", 0
    while len(received) < len(data):
        while sent < len(data):
            try:
                sent += ends.here.send(data[sent : sent + 1])
            except BlockingIOError:
                break
        ends.here.flush()
        received += receive(ends.there, 70_000)
    assert received == data


@pytest.mark.parametrize("seed", range(5))
def test_pieces_of_any_size_come_out_in_order(job: Identity, seed: int) -> None:
    rng = random.Random(seed)
    ends = Ends(job, buffer=rng.choice((4096, 65536, 1 << 20)))
    data = rng.randbytes(2_000_000)
    pieces, position = [], 0
    while position < len(data):
        size = rng.choice((1, 2, 100, 5000, 16384, 300_000))
        pieces.append(memoryview(data)[position : position + size])
        position += size
    received = bytearray()
    while len(received) < len(data):
        try:
            if pieces:
                taken = ends.here.sendmsg(pieces[: rng.choice((1, 3, 50))])
                while taken:
                    if taken < len(pieces[0]):
                        pieces[0] = pieces[0][taken:]
                        break
                    taken -= len(pieces.pop(0))
        except BlockingIOError:
            pass
        if not pieces:
            ends.here.flush()
        received += receive(ends.there, rng.choice((1, 1000, 500_000)))
    assert bytes(received) == data
    ends.close()


def test_bytes_left_inside_are_told_of(ends: Ends) -> None:
    """The kernel has nothing more, so nobody else could know."""
    ends.here.send(b"x" * 1000)
    assert receive(ends.there, 10) == b"x" * 10
    poll = select.poll()
    poll.register(ends.there.fileno(), select.POLLIN)
    assert poll.poll(0) == []
    assert ends.there.pending()
    assert receive(ends.there, 5000) == b"x" * 990
    assert not ends.there.pending()


def test_the_end_of_the_connection_is_the_end(ends: Ends) -> None:
    ends.here.send(b"last words")
    ends.here.shutdown(socket.SHUT_RDWR)
    assert receive(ends.there, 100) == b"last words"
    assert ends.there.recv_into(bytearray(10)) == 0
    assert ends.there.pending(), "the descriptor may be silent about an end that TLS announced"


def test_a_changed_byte_breaks_the_connection(job: Identity) -> None:
    ends = Ends(job)
    ends.here._sock.send(b"\x17\x03\x03\x00\x20" + bytes(32))
    with pytest.raises(OSError, match="not what the other side encrypted"):
        ends.there.recv_into(bytearray(10))
    ends.close()


def test_after_an_interrupted_send_nothing_is_sent(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between encrypting and counting: repeating the bytes would shift all frames behind."""

    def interrupted(self: TlsSocket) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TlsSocket, "_collect", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ends.here.send(b"data")
    with pytest.raises(OSError, match="interrupted"):
        ends.here.send(b"data")


class Flood:
    """A plain socket, which always has more of `made`."""

    def __init__(self, made: Callable[[], bytes]) -> None:
        self._made = made
        self._left = b""
        self.given = self.reads = 0

    def recv_into(self, buffer: memoryview, limit: int = 0) -> int:
        limit = limit or len(buffer)
        while len(self._left) < limit:
            self._left += self._made()
        buffer[:limit], self._left = self._left[:limit], self._left[limit:]
        self.given += limit
        self.reads += 1
        return limit

    def send(self, _data: memoryview) -> int:
        raise BlockingIOError

    def close(self) -> None: ...


def flooded(sock: TlsSocket, made: Callable[[], bytes]) -> Flood:
    sock.close()
    sock._sock = flood = Flood(made)  # type: ignore[assignment]
    return flood


NO_HOST = "sends no data, but messages of TLS itself"


@pytest.mark.parametrize("answered", [False, True])
def test_who_orders_new_keys_without_an_end_is_done_with(ends: Ends, answered: bool) -> None:
    flood = flooded(ends.there, lambda: new_keys(ends.here, 100, answered=answered))
    with pytest.raises(tls.TlsFailed, match=NO_HOST):
        receive(ends.there, 100_000)
    assert flood.given == 32 * 1024
    assert len(ends.there._unsent) <= flood.given


@pytest.mark.parametrize("server", [False, True])
def test_who_begins_new_handshakes_without_an_end_is_done_with(job: Identity, server: bool) -> None:
    ends = Ends(job, version=ssl.TLSVersion.TLSv1_2)
    attacker, victim = (ends.there, ends.here) if server else (ends.here, ends.there)
    _openssl.SSL_clear_options.argtypes = ctypes.c_void_p, ctypes.c_uint64
    _openssl.SSL_clear_options(session(attacker), int(ssl.OP_NO_RENEGOTIATION))

    def again() -> bytes:
        assert _openssl.SSL_renegotiate(session(attacker)) == 1
        _openssl.SSL_do_handshake(session(attacker))
        return attacker._out.read()

    hello = again()
    assert len(hello) > 20
    victim._in.write(hello)
    with pytest.raises(BlockingIOError):  # told no, and nothing happens
        victim.recv_into(bytearray(100))
    assert len(victim._unsent) < 100
    ends.close()


def test_among_data_orders_to_tls_let_others_have_their_turn(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """About the most of them that are borne: each call is over after a few reads, and what data there was came."""
    monkeypatch.setattr(tls, "_READ", 32 * 1024)
    flood = flooded(ends.there, lambda: data(ends.here, 30) + new_keys(ends.here, 5))
    for turn in range(1, 4):
        assert set(receive(ends.there, 1 << 20)) == {ord("x")}
        assert flood.reads <= 4 * turn


def test_answers_of_tls_that_nobody_takes_are_few(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "_ANSWERS", 8 * 1024)
    monkeypatch.setattr(tls, "_READ", 32 * 1024)
    flooded(ends.there, lambda: data(ends.here, 30) + new_keys(ends.here, 5, answered=True))
    with pytest.raises(tls.TlsFailed, match=NO_HOST):
        while True:
            receive(ends.there, 1 << 20)
    assert len(ends.there._unsent) < 2 * 8 * 1024


def test_new_keys_now_and_then_change_nothing(ends: Ends) -> None:
    received = b""
    for turn in range(1, 501):
        ends.here._sock.send(new_keys(ends.here, 1, answered=True) + data(ends.here, 1))
        received += receive(ends.there, 100)
        if turn % 50 == 0:
            assert ends.there.send(b"y" * 100) == 100
            assert receive(ends.here, 100) == b"y" * 100
    assert received == b"x" * 500


def test_without_a_certificate_no_order_to_tls_is_read(job: Identity) -> None:
    """In TLS 1.3 who dials takes itself as let in before its certificate is looked at."""
    raw = socket.socketpair()
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    here = TlsSocket(raw[0], bare, server=False)
    there = TlsSocket(raw[1], job.context(server=True), server=True)
    here.setblocking(False)
    there.setblocking(False)
    assert not here.handshake()
    assert not there.handshake()
    assert here.handshake()
    raw[0].send(new_keys(here, 1000, answered=True))
    with pytest.raises(tls.TlsFailed, match="has shown no certificate"):
        there.handshake()
    assert there._tls.pending() == 0
    assert here._fill(65536) < 100  # an alert, and no answers
    here.close()
    there.close()


def test_it_does_not_block(ends: Ends) -> None:
    ends.here.setblocking(False)
    with pytest.raises(ValueError, match="does not block"):
        ends.here.setblocking(True)


# Certificates.


def test_certificates_are_given_as_paths_or_pem(job: Identity) -> None:
    files = [Path(one) for one in (job.ca, job.certificate, job.private_key)]
    for given in (
        [str(one) for one in files],
        files,
        [one.read_bytes() for one in files],
        [one.read_text() for one in files],
    ):
        made = tls.context(*given, server=True)  # type: ignore[arg-type, misc]
        assert made.verify_mode is ssl.CERT_REQUIRED
        assert made.minimum_version is ssl.TLSVersion.TLSv1_2


def test_what_is_no_certificate_is_said(jobs: tuple[Identity, Identity], tmp_path: Path) -> None:
    job, other = jobs
    key = Path(job.private_key).read_bytes()
    cases: list[tuple[tuple[Any, Any, Any], str]] = [
        (("/no/such", job.certificate, job.private_key), "ca: cannot read .*/no/such.*: No such file"),
        ((b"garbage", job.certificate, job.private_key), r"ca: the PEM given \(7 characters\) is not a valid PEM"),
        ((job.ca, job.certificate, "/no/such"), "certificate or private_key: cannot read .*: No such file"),
        ((job.ca, job.certificate, other.private_key), "certificate or private_key: .*: KEY_VALUES_MISMATCH"),
        ((job.ca, key, key), r"certificate or private_key: the PEM given \(\d+ characters\) is not a valid PEM"),
    ]
    for given, words in cases:
        with pytest.raises(ValueError, match=words) as caught:
            tls.context(*given, server=True)
        assert "PRIVATE KEY" not in str(caught.value)
    openssl(tmp_path, "ec", "-in", job.private_key, "-aes128", "-passout", "pass:hush", "-out", "locked.key")
    with pytest.raises(ValueError, match="private_key is protected by a password"):
        tls.context(job.ca, job.certificate, str(tmp_path / "locked.key"), server=True)


# Between hosts.


class Owner:
    """The owner of a StreamConnection: keeps digests, so that 50 MB need not stay."""

    def __init__(self) -> None:
        self.frames: list[tuple[bytes, bytes]] = []
        self.come = threading.Semaphore(0)
        self.losses: list[str] = []

    def connection_received(self, connection: Any, frames: list[Frame]) -> None:
        for one in frames:
            self.frames.append((bytes(one.head), hashlib.sha256(one.body).digest()))
            self.come.release()

    def connection_lost(self, connection: Any, reason: str) -> None:
        self.losses.append(reason)
        self.come.release()


class Host(RunningLoop):
    def __init__(self) -> None:
        super().__init__()
        self.accepted: list[Accepted] = []
        self.come = threading.Semaphore(0)
        self.cleanup: list[Callable[[], None]] = []

    def listen(self, context: ssl.SSLContext | None) -> TcpListener:
        def accept(accepted: Accepted) -> None:
            self.accepted.append(accepted)
            self.come.release()

        address = parse("tcp://127.0.0.1:0")
        listener = self.call(lambda: TcpListener(address, self.loop, accept, secret=SECRET, tls=context))
        self.cleanup.append(lambda: self.call(listener.close))
        return listener

    def dial(self, prefix: str, context: ssl.SSLContext | None, secret: Secret = SECRET) -> Any:
        outcomes: list[Any] = []
        come = threading.Event()

        def done(outcome: Any) -> None:
            outcomes.append(outcome)
            come.set()

        to = parse_dial(prefix)
        self.call(lambda: dial(to, self.loop, done, secret=secret, tls=context, start_thread=start_thread))
        assert come.wait(TIMEOUT)
        self.call(lambda: None)
        return outcomes[0]

    def pair(self, job: Identity, buffer: int = 0) -> tuple[StreamConnection, Owner, StreamConnection, Owner]:
        """Two ends of one connection, as agents have them."""
        made: list[Any] = []
        dialled = self.dial(self.listen(job.context(server=True)).prefix, job.context(server=False))
        assert self.come.acquire(timeout=TIMEOUT)
        for sock in (dialled, self.accepted[-1].sock):
            assert isinstance(sock, TlsSocket)
            if buffer:
                sock._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
            owner = Owner()
            connection = StreamConnection(sock, self.loop, owner, limit=1 << 20)
            self.call(connection.start)
            made += [connection, owner]
        self.cleanup.append(lambda: made[0].close("enough"))
        self.cleanup.append(lambda: made[2].close("enough"))
        return tuple(made)  # type: ignore[return-value]

    def close(self) -> None:
        for one in self.cleanup:
            one()
        for _ in range(3):
            self.call(lambda: None)
        assert self.loop.statistics()["descriptors"] == 0
        self.end()


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


def send_all(connection: StreamConnection, frames: list[tuple[bytes, bytes]], wait: bool) -> None:
    for head, body in frames:
        assert connection.wait_room(TIMEOUT)
        connection.send(frame.encode(head, body), wait=wait)


@pytest.mark.parametrize("wait", [False, True])
def test_fifty_megabytes_both_ways_at_once(host: Host, job: Identity, wait: bool) -> None:
    """Senders in threads of their own, with small kernel buffers, while the I/O thread reads and writes the rest."""
    rng = random.Random(3)
    here, at_here, there, at_there = host.pair(job, buffer=65536)
    sizes = [0, 1, 100, 5000, 16384, 100_000, 3_000_000]
    frames: list[tuple[bytes, bytes]] = []
    total = 0
    while total < 50_000_000:
        body = rng.randbytes(rng.choice(sizes))
        frames.append((b"%d" % len(frames), body))
        total += len(body)
    half = len(frames) // 2
    senders = [
        threading.Thread(target=send_all, args=(here, frames, wait)),
        threading.Thread(target=send_all, args=(there, frames[:half], wait)),
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(2 * TIMEOUT)
        assert not sender.is_alive()
    for owner, count in ((at_there, len(frames)), (at_here, half)):
        for _ in range(count):
            assert owner.come.acquire(timeout=TIMEOUT)
        assert owner.losses == []
        assert owner.frames == [(head, hashlib.sha256(body).digest()) for head, body in frames[:count]]


def test_what_a_turn_left_inside_is_read_in_the_next(
    host: Host, job: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has been emptied by then and would never tell of it."""
    monkeypatch.setattr(stream, "_BYTES_A_TURN", 1)
    here, _, _, at_there = host.pair(job)
    for _ in range(20):
        here.send(
            [*frame.encode(b"large", b"x" * 300_000), *frame.encode(b"small")]
        )  # the large one fills its own memory
        for _ in range(2):
            assert at_there.come.acquire(timeout=TIMEOUT)
    assert [head for head, _ in at_there.frames] == [b"large", b"small"] * 20


def test_several_threads_send_small_frames(host: Host, job: Identity) -> None:
    here, _, _, at_there = host.pair(job, buffer=8192)

    def send(name: bytes) -> None:
        for number in range(1000):
            small = frame.encode_small(b"%s%d" % (name, number), b"x" * 50)
            assert here.wait_room(TIMEOUT)
            if not here.send_small(small):
                here.send([small])

    senders = [threading.Thread(target=send, args=(name,)) for name in (b"a", b"b", b"c")]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join(TIMEOUT)
    for _ in range(3000):
        assert at_there.come.acquire(timeout=TIMEOUT)
    assert at_there.losses == []
    for name in (b"a", b"b", b"c"):
        heads = [head for head, _ in at_there.frames if head.startswith(name)]
        assert heads == [b"%s%d" % (name, number) for number in range(1000)]


def test_frames_that_come_with_the_handshake_are_not_forgotten(host: Host, job: Identity) -> None:
    """They may be decrypted before the connection begins to read, when the kernel has nothing more to tell of."""
    listener = host.listen(job.context(server=True))
    sock = host.dial(listener.prefix, job.context(server=False))
    assert host.come.acquire(timeout=TIMEOUT)
    accepted: Any = host.accepted[-1].sock
    data = b"".join(bytes(piece) for piece in frame.encode(b"first", b"body"))
    assert accepted.send(data) == len(data)
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    assert poll.poll(TIMEOUT * 1000)
    with sock._lock:
        assert sock._fill(65536)  # what reading the last word of the handshake does when both came together
    owner = Owner()
    connection = StreamConnection(sock, host.loop, owner, limit=1 << 20)
    host.call(connection.start)
    assert owner.come.acquire(timeout=TIMEOUT)
    assert owner.frames == [(b"first", hashlib.sha256(b"body").digest())]
    accepted.close()
    assert owner.come.acquire(timeout=TIMEOUT)
    assert owner.losses == ["the other process closed the connection"]
    host.call(lambda: None)


def last_message(caplog: pytest.LogCaptureFixture) -> str:
    assert log_thread.flush(5)
    return [one.getMessage() for one in caplog.records if one.name == "monarch"][-1].removeprefix("[actor=<root>] ")


def failure(host: Host, prefix: str, context: ssl.SSLContext | None) -> DialFailed:
    outcome = host.dial(prefix, context)
    assert isinstance(outcome, DialFailed)
    assert outcome.final
    assert host.accepted == []
    return outcome


def test_a_certificate_of_another_ca_is_refused(
    host: Host, jobs: tuple[Identity, Identity], caplog: pytest.LogCaptureFixture
) -> None:
    listener = host.listen(jobs[0].context(server=True))
    refused = failure(host, listener.prefix, jobs[1].context(server=False))
    assert "the other side's certificate is not accepted" in str(refused)
    assert "its one CA has signed" in str(refused)
    host.call(lambda: None)
    assert "127.0.0.1" in last_message(caplog)


def test_the_listener_looks_at_certificates_too(
    host: Host, jobs: tuple[Identity, Identity], caplog: pytest.LogCaptureFixture
) -> None:
    """A dialler that trusts the listener, but has a certificate of another CA, or none."""
    listener = host.listen(jobs[0].context(server=True))
    stranger = tls.context(jobs[0].ca, jobs[1].certificate, jobs[1].private_key, server=False)
    assert "refused this side's certificate" in str(failure(host, listener.prefix, stranger))
    assert "certificate is not accepted" in last_message(caplog)
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.check_hostname = False
    nobody.load_verify_locations(jobs[0].ca)
    assert "it wants a certificate of this side" in str(failure(host, listener.prefix, nobody))
    assert "has shown no certificate" in last_message(caplog)


def test_tls_on_one_side_only_is_said(host: Host, job: Identity, caplog: pytest.LogCaptureFixture) -> None:
    secure = host.listen(job.context(server=True))
    assert "it speaks TLS, and this side has no certificates" in str(failure(host, secure.prefix, None))
    assert "both need certificates, or neither" in last_message(caplog)
    plain = host.listen(None)
    refused = failure(host, plain.prefix, job.context(server=False))
    assert "both need certificates, or neither" in str(refused)
    assert "it speaks TLS, and this side has no certificates" in last_message(caplog)


def test_a_certificate_alone_does_not_do(host: Host, job: Identity) -> None:
    listener = host.listen(job.context(server=True))
    outcome = host.dial(listener.prefix, job.context(server=False), Secret("some other words"))
    assert isinstance(outcome, DialFailed)
    assert "another secret" in str(outcome)
    assert host.accepted == []


# --- strangers


def test_strangers_with_half_a_hello_leave_nothing(host: Host, job: Identity, caplog: pytest.LogCaptureFixture) -> None:
    """The garbage collector is off: what only it would free adds up, for it comes seldom."""
    caplog.set_level(logging.ERROR)
    listener = host.listen(job.context(server=True))
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    said = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        client.wrap_bio(ssl.MemoryBIO(), said).do_handshake()
    hello = said.read()
    port = int(listener.prefix.rpartition(":")[2])
    served: list[weakref.ref[Any]] = []
    handshake = tls.TlsSocket.handshake

    def seen(sock: TlsSocket) -> bool:
        if weakref.ref(sock) not in served:
            served.append(weakref.ref(sock))
        return handshake(sock)

    gc.collect()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tls.TlsSocket, "handshake", seen)
            before = 0
            for part in (hello[: len(hello) // 2], hello, hello[:-1] + b"x"):
                strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
                for stranger in strangers:
                    stranger.sendall(part)
                    stranger.shutdown(socket.SHUT_WR)
                before += len(strangers)
                while host.call(listener.statistics)["failed"] < before:
                    pass
                for stranger in strangers:
                    stranger.close()
        assert served and [ref for ref in served if ref() is not None] == []
    finally:
        gc.enable()


def test_a_certificate_that_has_expired_is_told_as_that_on_both_sides() -> None:
    exc = ssl.SSLCertVerificationError(1, "certificate verify failed")
    exc.reason, exc.verify_code, exc.verify_message = "CERTIFICATE_VERIFY_FAILED", 10, "certificate has expired"
    context = ssl.create_default_context()
    context.check_hostname = False  # as in ours: Python 3.14 wants a name here otherwise
    ours, theirs = socket.socketpair()
    with ours, theirs:
        said = tls.TlsSocket(ours, context, server=False)._explain(exc)
    assert said.startswith("the other side's certificate has expired. `monarch certs` makes new ones")
    alert = tls.explain_alert("sslv3 alert certificate expired")
    assert alert.startswith("the other side refused this side's certificate, which has expired. `monarch certs`")
