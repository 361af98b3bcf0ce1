"""TLS of two processes over one socket: who may take part, and that it behaves as a blocking socket does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("cryptography")

from monarch._wire.transport.tls_stream import TlsStream, make_pem
from tests.support.patience import TIMEOUT

SAID = b"what nobody else may read"


def joined(client: bytes, server: bytes) -> tuple[TlsStream, TlsStream, list[BaseException]]:
    """Two ends with these keys, after their handshake; and what went wrong in it."""
    left, right = socket.socketpair()
    ends = TlsStream(left, client, server=False), TlsStream(right, server, server=True)
    failed: list[BaseException] = []

    def shake(end: TlsStream) -> None:
        end.settimeout(TIMEOUT)
        try:
            end.handshake()
        except OSError as exc:
            failed.append(exc)
            end.close()

    thread = threading.Thread(target=shake, args=(ends[1],))
    thread.start()
    shake(ends[0])
    thread.join(TIMEOUT)
    return *ends, failed


@pytest.fixture
def ends() -> Iterator[tuple[TlsStream, TlsStream]]:
    pem = make_pem()
    client, server, failed = joined(pem, pem)
    assert not failed
    yield client, server
    client.close()
    server.close()


def test_bytes_arrive_and_are_not_readable_on_the_way(ends: tuple[TlsStream, TlsStream]) -> None:
    client, server = ends
    client.sendall(SAID)
    seen = server._sock.recv(4096, socket.MSG_PEEK)
    assert seen.startswith(b"\x17\x03\x03") and SAID not in seen
    assert server.recv(len(SAID)) == SAID


def test_a_key_made_for_another_stream_opens_none() -> None:
    """Nothing that was said before the end of the handshake reaches the other side."""
    client, server, failed = joined(make_pem(), make_pem())
    with client, server:
        assert len(failed) == 2 and "certificate" in str(failed)
        assert not server._tls.established


def test_who_speaks_no_tls_is_told_so_and_nothing_is_taken() -> None:
    left, right = socket.socketpair()
    with left, TlsStream(right, make_pem(), server=True) as server:
        left.sendall(b"\1" * 300)
        server.settimeout(TIMEOUT)
        with pytest.raises(OSError, match="does not speak TLS"):
            server.handshake()


def test_several_buffers_are_filled_in_their_order(ends: tuple[TlsStream, TlsStream]) -> None:
    client, server = ends
    assert client.sendmsg([SAID[:7], SAID[7:]]) == len(SAID)
    one, two = bytearray(10), bytearray(100)
    count = server.recvmsg_into([memoryview(one), memoryview(two)])[0]
    assert (count, bytes(one + two[: count - 10])) == (len(SAID), SAID)
    client.close()
    assert server.recvmsg_into([memoryview(one), memoryview(two)])[0] == 0


def test_what_came_at_once_and_was_not_all_read_is_pending(ends: tuple[TlsStream, TlsStream]) -> None:
    client, server = ends
    client.sendall(SAID)
    assert server.recv(1) == SAID[:1]
    assert server.pending()
    assert server.recv(100) == SAID[1:] and not server.pending()


@pytest.mark.parametrize("way", ["send", "receive"])
def test_it_waits_unless_it_is_told_not_to(ends: tuple[TlsStream, TlsStream], way: str) -> None:
    client = ends[0]
    client.settimeout(0.01)
    with pytest.raises(BlockingIOError):
        while True:
            if way == "send":
                client.sendmsg([bytes(1 << 20)], (), socket.MSG_DONTWAIT)
            else:
                client.recvmsg_into([memoryview(bytearray(8))], 0, socket.MSG_DONTWAIT)
    with pytest.raises(TimeoutError):
        client.sendmsg([b"and more"]) if way == "send" else client.recv(1)


def test_a_large_value_goes_whole_while_another_comes(ends: tuple[TlsStream, TlsStream]) -> None:
    value = bytes(range(256)) * (16 << 10)
    found: dict[bool, bytes] = {}

    def send(end: TlsStream) -> None:
        end.sendall(value)

    def receive(end: TlsStream) -> None:
        data = bytearray(len(value))
        left = memoryview(data)
        while left:
            left = left[end.recv_into(left) :]
        found[end is ends[0]] = bytes(data)

    threads = [threading.Thread(target=do, args=(end,)) for end in ends for do in (send, receive)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert found == {True: value, False: value}


def test_the_end_has_the_words_of_a_plain_socket(ends: tuple[TlsStream, TlsStream]) -> None:
    client, server = ends
    server.close()
    assert client.recv(1) == b""
    with pytest.raises(BrokenPipeError, match="Broken pipe"):
        client.sendall(SAID)
