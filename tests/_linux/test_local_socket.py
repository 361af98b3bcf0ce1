"""Messages between two processes of one user, and who is at the other end."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._linux import local_socket
from monarch._linux.local_socket import PeerClosedError, TornMessageError
from tests.support.patience import TIMEOUT
from tests.support.users import as_stranger, needs_root

LIMIT = 1 << 20


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_messages_come_as_they_were_sent(messages: list[bytes]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for message in messages:
            local_socket.send(ours, message)
        assert [local_socket.receive(theirs, LIMIT) for _ in messages] == messages


def test_a_large_one(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    data = os.urandom(LIMIT)
    thread = threading.Thread(target=local_socket.send, args=(ours, data))
    thread.start()
    assert local_socket.receive(theirs, LIMIT) == data
    thread.join()


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", PeerClosedError),
        (b"\0\0", TornMessageError),
        (b"\0\0\0\7", TornMessageError),
        (b"\0\0\0\7abcdef", TornMessageError),
    ],
)
def test_an_end_between_messages_is_told_from_one_within(
    pair: tuple[socket.socket, socket.socket], sent: bytes, error: type
) -> None:
    ours, theirs = pair
    ours.sendall(sent)
    ours.shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError) as caught:
        local_socket.receive(theirs, LIMIT)
    assert type(caught.value) is error and isinstance(caught.value, ConnectionError)


@pytest.mark.parametrize(("sent", "error"), [(b"", PeerClosedError), (b"\0\0", TornMessageError)])
def test_the_end_of_one_that_has_not_read_all_is_an_end(
    pair: tuple[socket.socket, socket.socket], sent: bytes, error: type
) -> None:
    ours, theirs = pair
    ours.sendall(sent)
    theirs.sendall(b"not read")
    ours.close()
    with pytest.raises(PeerClosedError) as caught:
        local_socket.receive(theirs, LIMIT)
    assert type(caught.value) is error


def test_what_is_over_the_limit_is_neither_sent_nor_read(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    with pytest.raises(ValueError, match="a message of 8 bytes is over the limit of 7"):
        local_socket.send(ours, b"12345678", 7)
    ours.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(ValueError, match="a message of 4,294,967,295 bytes is over the limit of 7"):
        local_socket.receive(theirs, 7)


def test_a_deadline_is_for_all_of_a_message(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.sendall(b"abc")
    assert local_socket.read_exactly(theirs, 2, time.monotonic() + float("inf")) == b"ab"
    with pytest.raises(TimeoutError):
        local_socket.read_exactly(theirs, 2, time.monotonic())


def listening_at(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    path.chmod(0o777)
    return listening


def test_the_other_side_of_this_process_is_this_user(tmp_path: Path) -> None:
    with listening_at(tmp_path / "s") as listening, local_socket.connect(str(tmp_path / "s"), 3) as ours:
        assert ours.gettimeout() == 3 and not ours.get_inheritable()
        assert local_socket.peer_of(ours) == (os.getpid(), os.geteuid())
        with listening.accept()[0] as theirs:
            assert local_socket.check_peer(theirs, "a socket") == os.getpid()
    for error, path in ((ConnectionRefusedError, tmp_path / "s"), (FileNotFoundError, tmp_path / "none")):
        with pytest.raises(error):
            local_socket.connect(str(path))


@needs_root
def test_a_stranger_is_refused(open_folder: Path) -> None:
    with listening_at(open_folder / "s") as listening:

        def dial() -> str:
            """A stranger does not take root for itself, unless it is to."""
            local_socket.connect(str(open_folder / "s"), root=True).close()
            with pytest.raises(PermissionError) as caught:
                local_socket.connect(str(open_folder / "s"))
            return str(caught.value)

        said = as_stranger(dial)
        assert said == f"process {os.getpid()} of user 0 is at the other end of the socket {open_folder}/s"
        with listening.accept()[0] as theirs:
            assert not local_socket.same_user(theirs)
            with pytest.raises(PermissionError, match="of user 65534 is at the other end of a socket"):
                local_socket.check_peer(theirs, "a socket")


@needs_root
def test_a_user_with_a_large_number_is_the_same_user() -> None:
    def both() -> tuple[bool, int]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            return local_socket.same_user(ours), local_socket.peer_of(ours)[1]

    assert as_stranger(both, 3_000_000_000) == (True, 3_000_000_000)


def test_who_connects_waits_for_room_in_a_full_queue(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen(0)
        with local_socket.connect(path, TIMEOUT):
            with pytest.raises(TimeoutError, match=r"took no connection for 0\.05 s"):
                local_socket.connect(path, 0.05)
            taken: list[socket.socket] = []
            accepting = threading.Thread(target=lambda: taken.extend(listening.accept()[0] for _ in range(2)))
            accepting.start()
            with local_socket.connect(path, TIMEOUT) as connection:
                accepting.join()
                connection.sendall(b"here")
                assert taken[1].recv(4) == b"here"
            for each in taken:
                each.close()
