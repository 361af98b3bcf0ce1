"""Commands that are started once on every node: the meeting as a list, and its door."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator

import pytest

from monarch.actor.lowlevel import Acceptor, Secret
from monarch.job.torchrun import meeting, meeting_sockets
from monarch.job.torchrun.meeting import OWN, Joining, Meeting, MeetingPlace, Message, PassedSignal, RunEnded
from monarch.job.torchrun.meeting_sockets import Door, MeetingLine, NotOursError, dial
from tests.support.patience import TIMEOUT
from tests.support.users import STRANGER, needs_root, relay

PLACE = MeetingPlace(host="node1", port=29500)
SECRET = Secret("of the test")


def command(name: str, node_rank: int | None = None, nodes: tuple[int, int] = (3, 3), **more: object) -> Joining:
    said = {"run_id": "7", "port": 1, "address": "", "same": {"--role": "a"}} | more
    return Joining(name=name, least=nodes[0], most=nodes[1], node_rank=node_rank, **said)  # type: ignore[arg-type]


def test_the_one_that_leads_is_first_and_the_others_follow_by_name() -> None:
    meet = Meeting(command("b"), PLACE, now=0)
    assert meet.came(1, command("c"), 1) == "" and not meet.over and meet.due == 600
    assert meet.came(2, command("a"), 2) == "" and meet.order == [OWN, 2, 1]
    assert meet.member(2).name == "a"
    meet.passed(1e9)
    assert not meet.error


def test_node_ranks_are_obeyed() -> None:
    meet = Meeting(command("a", 2), PLACE, now=0)
    for number, rank in ((1, 0), (2, 1)):
        assert meet.came(number, command("a", rank), 0) == ""
    assert meet.order == [1, 2, OWN]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (command("a"), command("b", nodes=(2, 2)), "different numbers of nodes: --nnodes 3 on a and --nnodes 2 on b"),
        (command("a"), command("b", nodes=(1, 3)), "--nnodes 3 on a and --nnodes 1:3 on b"),
        (command("a", 0), command("b", 0), "a and b both say --node-rank 0"),
        (command("a", 0), command("b"), "a says --node-rank 0 and b says none"),
        (command("a"), command("b", 1), "b says --node-rank 1 and a says none"),
        (command("a", 0), command("b", 3), "--node-rank 3 on b: with --nnodes 3 it is 0 to 2"),
        (command("a"), command("b", same={"--role": "b"}), "on a and b differ in --role: one of them starts the ranks"),
    ],
)
def test_what_is_not_said_alike_ends_the_meeting(first: Joining, second: Joining, said: str) -> None:
    meet = Meeting(first, PLACE, now=0)
    assert said in meet.came(1, second, 1)
    assert meet.over and said in meet.error and meet.order is None
    assert meet.came(2, command("c"), 1) == meet.error  # who comes later is told the same


def test_a_command_of_another_run_is_refused_and_harms_nobody() -> None:
    meet = Meeting(command("a"), PLACE, now=0)
    assert "the run --rdzv-id 7 meets at node1:29500, and this is --rdzv-id 8" in meet.came(
        1, command("b", run_id="8"), 0
    )
    assert not meet.over


def test_one_too_many_is_refused_and_the_run_goes_on() -> None:
    meet = Meeting(command("a", nodes=(2, 2)), PLACE, now=0)
    meet.came(1, command("b", nodes=(2, 2)), 0)
    said = meet.came(2, command("c", nodes=(2, 2)), 5)
    assert "--nnodes 2, and 2 commands have met at node1:29500 and run (a, b): c is one more" in said
    assert meet.order == [OWN, 1] and not meet.error


def test_too_few_within_the_time() -> None:
    meet = Meeting(command("a", 1), PLACE, now=100)
    meet.came(1, command("b", 2), 110)
    meet.passed(699)
    assert not meet.over
    meet.passed(700)
    assert "2 of 3 commands came to node1:29500 within 600 s: a, b; missing: --node-rank 0" in meet.error


def test_who_goes_before_all_are_there_may_come_again() -> None:
    meet = Meeting(command("a", nodes=(2, 2)), PLACE, now=0)
    other = Meeting(command("a", 0, nodes=(3, 3)), PLACE, now=0)
    assert other.came(1, command("b", 1), 1) == ""
    other.left(1)
    assert other.came(2, command("b", 1), 2) == "" and not other.over
    meet.came(1, command("b", nodes=(2, 2)), 0)
    meet.left(1)  # when it runs, the run tells of a lost host
    assert meet.order == [OWN, 1]


def test_a_range_of_nodes_has_a_last_call() -> None:
    meet = Meeting(command("a", nodes=(2, 4)), PLACE, now=0)
    assert meet.due == 600
    meet.came(1, command("b", nodes=(2, 4)), 100)
    assert meet.due == 130
    meet.came(2, command("c", nodes=(2, 4)), 120)
    assert meet.due == 130  # it does not begin anew
    meet.passed(130)
    assert meet.order == [OWN, 1, 2]
    alone = Meeting(command("a", nodes=(2, 4)), PLACE, now=0)
    alone.came(1, command("b", nodes=(2, 4)), 100)
    alone.left(1)
    assert alone.due == 600
    alone.passed(600)
    assert "--nnodes 2:4, and 1 of 2 commands came" in alone.error


def test_one_node_of_a_range_has_enough_by_itself() -> None:
    meet = Meeting(command("a", nodes=(1, 2)), PLACE, now=0)
    assert meet.due == 30
    meet.passed(30)
    assert meet.order == [OWN]


def test_at_which_addresses_workers_are_dialled() -> None:
    def found(*seen: str, reached: str) -> list[str]:
        return meeting.addresses(range(len(seen)), dict(enumerate(seen)), reached)

    assert found("", "10.0.0.2", reached="10.0.0.1") == ["10.0.0.1", "10.0.0.2"]
    assert found("", "127.0.0.1", reached="127.0.0.1") == ["127.0.0.1", "127.0.0.1"]
    # Others mean themselves by a loopback address.
    assert found("", "127.0.0.1", "10.0.0.3", reached="10.0.0.1") == ["10.0.0.1", "10.0.0.1", "10.0.0.3"]


# --- the door


class Visits:
    """A door on a port of its own, whose visitors' messages are put into a queue."""

    def __init__(self) -> None:
        self.said: queue.SimpleQueue[tuple[int, Message | None]] = queue.SimpleQueue()
        self._listening = meeting_sockets.listen("127.0.0.1", 0)
        self.port = int(self._listening.getsockname()[1])
        self.door = Door(self._listening, SECRET, self.visit)

    def visit(self, number: int, line: MeetingLine) -> None:
        while True:
            said = line.read(TIMEOUT)
            self.said.put((number, said))
            if said is None:
                return
            line.send(RunEnded(number))


@pytest.fixture
def visits() -> Iterator[Visits]:
    found = Visits()
    yield found
    found.door.close()


def test_who_knows_the_secret_is_let_in(visits: Visits) -> None:
    line = dial("127.0.0.1", visits.port, SECRET, TIMEOUT)
    line.send(PassedSignal(15))
    assert visits.said.get(timeout=TIMEOUT) == (1, PassedSignal(15))
    assert line.read(TIMEOUT) == RunEnded(1) and line.peer == line.here == "127.0.0.1"
    line.close()
    assert visits.said.get(timeout=TIMEOUT) == (1, None)


def test_strangers_get_no_word_in(visits: Visits) -> None:
    """Neither who has another secret nor who has none; what they say is not read."""
    with pytest.raises(NotOursError, match="another secret than this one") as caught:
        dial("127.0.0.1", visits.port, Secret("another"), TIMEOUT)
    assert caught.value.final
    for data in (b"GET / HTTP/1.0\r\n\r\n", b'{"type":"signal","number":15}\n' * 100, b"\x80\x05", b""):
        with socket.create_connection(("127.0.0.1", visits.port), timeout=TIMEOUT) as sock:
            try:  # the door may close before it has read all, which resets the connection
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(4096):
                    pass
            except OSError:
                pass
    line = dial("127.0.0.1", visits.port, SECRET, TIMEOUT)
    line.send(PassedSignal(2))
    number, said = visits.said.get(timeout=TIMEOUT)
    assert said == PassedSignal(2) and number == 6 and visits.said.empty()
    line.close()


@needs_root
def test_another_user_who_passes_on_what_two_commands_say_is_refused(visits: Visits) -> None:
    with (
        relay(visits.port) as port,
        pytest.raises(NotOursError, match=f"belongs to user {STRANGER}, who may") as caught,
    ):
        dial("127.0.0.1", port, SECRET, TIMEOUT)
    assert caught.value.final
    assert visits.said.empty()


def test_who_closes_behind_his_last_word_is_known_from_before(visits: Visits, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel names nobody at the other end of a connection that was closed there."""
    acceptors: list[Acceptor] = []

    def acceptor(secret: Secret) -> Acceptor:
        acceptors.append(Acceptor(secret))
        return acceptors[-1]

    def stranger_at(sock: socket.socket) -> str:
        at_the_door = sock.getsockname()[1] == visits.port
        return "it belongs to somebody else" if at_the_door and not acceptors[0].done else ""

    monkeypatch.setattr(meeting_sockets, "Acceptor", acceptor)
    monkeypatch.setattr(meeting_sockets, "stranger_at", stranger_at)
    line = dial("127.0.0.1", visits.port, SECRET, TIMEOUT)
    line.send(PassedSignal(15))
    assert line.read(TIMEOUT) is None
    line.close()
    assert visits.said.empty()


@pytest.mark.parametrize("data", [b"x" * 100_000, b'{"type":"nonsense"}\n', b"\xff\n"])
def test_lines_that_are_none(data: bytes) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    with listening, socket.create_connection(listening.getsockname()) as sock:
        line = MeetingLine(listening.accept()[0])
        sock.sendall(data)
        with pytest.raises(NotOursError, match=r"too long|the same release"):
            line.read(TIMEOUT)
        line.close()


def test_whether_a_host_is_this_machine() -> None:
    assert meeting_sockets.is_here("127.0.0.1") and meeting_sockets.is_here(socket.gethostname())
    assert not meeting_sockets.is_here("192.0.2.1")
