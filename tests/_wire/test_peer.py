"""Another process as this one sees it, with a network and an agent that the test plays."""

from __future__ import annotations

import errno
import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from monarch._wire.frame import Buffer
from monarch._wire.peer import Peer, PeerEnded
from monarch._wire.transport.base import Connection, ConnectionLost


class Link:
    """A Connection that records what was sent."""

    remote = "unix:/h/m.0"
    pid = 1

    def __init__(self, broken: bool = False) -> None:
        self.sent: list[bytes] = []
        self.lost = broken
        self.queued = 0
        self.closed = ""
        self.on_send: Callable[[], Any] = lambda: None

    def send(
        self, pieces: Sequence[Buffer], wait: bool = False, coalesce_within: float = 0.0, owned: bool = False
    ) -> None:
        if self.lost:
            raise ConnectionLost("it broke")
        self.sent.append(b"".join(bytes(piece) for piece in pieces))
        self.on_send()

    def wait_room(self, timeout: float) -> bool:
        return True

    def close(self, reason: str) -> None:
        self.closed = reason


class World:
    """A world that dialling finds, one entry a dial: a Link, nobody listening, or an error of the kernel."""

    def __init__(self, *found: Link | int | None) -> None:
        self.found = list(found)
        self.asked = 0
        self.failed: list[int | None] = []
        self.peer = Peer(
            "unix:/h/m.0", self.dial, self.ask, dial_failed=lambda peer, exc: self.failed.append(exc.errno)
        )

    def dial(self, address: str) -> Connection:
        assert address == "unix:/h/m.0"
        link = self.found.pop(0)
        if link is None:
            raise ConnectionRefusedError(address)
        if isinstance(link, int):
            raise OSError(link, "as the test wants it")
        return link

    def ask(self, peer: Peer) -> None:
        assert peer is self.peer
        self.asked += 1


def test_the_first_frame_dials_and_the_others_use_the_connection() -> None:
    link = Link()
    world = World(link)
    assert "idle" in repr(world.peer)
    for frame in (b"1", b"2"):
        world.peer.send([frame, b"!"])
    assert link.sent == [b"1!", b"2!"] and world.asked == 0
    assert "up" in repr(world.peer)


def test_frames_are_kept_while_nobody_listens_and_sent_in_order_once_somebody_does() -> None:
    link = Link()
    world = World(None, link)
    memory = bytearray(b"1")
    world.peer.send([memory])
    memory[:] = b"X"  # the caller's memory is the caller's again
    world.peer.send([b"22"])
    assert (world.asked, world.peer.queued) == (1, 3)  # its agent is asked once
    assert "2 frames kept" in repr(world.peer)
    world.peer.listening()
    world.peer.send([b"3"])
    assert link.sent == [b"1", b"22", b"3"]
    assert (world.peer.queued, world.peer.asking) == (0, False)


def test_a_process_that_dials_us_gets_what_was_kept_for_it() -> None:
    link = Link()
    world = World(None)
    world.peer.send([b"1"])
    world.peer.adopt(link)
    world.peer.send([b"2"])
    assert link.sent == [b"1", b"2"] and not world.peer.asking
    world.peer.adopt(other := Link())  # both dialled: ours stays
    world.peer.send([b"3"])
    assert other.sent == [] and link.sent[-1] == b"3"


@pytest.mark.parametrize("come", ["listening", "adopt"])
def test_nothing_overtakes_what_was_kept(come: str) -> None:
    link = Link()
    world = World(None, link)
    world.peer.send([b"1"])
    seen: list[Connection | None] = []
    link.on_send = lambda: seen.append(world.peer.connection)
    world.peer.listening() if come == "listening" else world.peer.adopt(link)
    assert seen == [None] and world.peer.connection is link


def test_the_end_is_told_to_whoever_sends_and_drops_what_was_kept() -> None:
    world = World(None)
    world.peer.send([b"1"])
    world.peer.end("killed")
    assert world.peer.queued == 0 and "ended" in repr(world.peer)
    with pytest.raises(PeerEnded, match=r"the process at unix:/h/m\.0 has ended") as caught:
        world.peer.send([b"2"])
    assert caught.value.why == "killed"
    world.peer.end("told again")
    world.peer.listening()
    world.peer.adopt(Link())
    assert world.peer.ended == "killed" and world.peer.connection is None


def test_the_end_closes_the_connection() -> None:
    link = Link()
    world = World(link)
    world.peer.send([b"1"])
    world.peer.end("exited")
    assert link.closed == "the process has ended"
    with pytest.raises(PeerEnded):
        world.peer.send([b"2"])


def test_a_lost_connection_asks_the_agent_once_and_keeps_what_follows() -> None:
    first, second = Link(), Link()
    world = World(first, None, second)
    world.peer.send([b"1"])
    first.lost = True
    world.peer.lost(first)
    world.peer.lost(first)
    world.peer.send([b"2"])
    assert world.asked == 1 and world.peer.asking
    world.peer.listening()  # nobody there yet after all
    assert world.peer.asking and world.peer.queued == 1
    world.peer.listening()
    assert second.sent == [b"2"] and first.sent == [b"1"]


def test_a_sender_that_meets_the_loss_first_does_not_hear_of_it() -> None:
    link = Link()
    world = World(link)
    world.peer.send([b"1"])
    link.lost = True
    world.peer.send([b"2"])
    assert (world.asked, world.peer.queued, world.peer.connection) == (1, 1, None)


def test_a_process_that_ends_between_dialling_and_the_first_frame() -> None:
    world = World(Link(broken=True))
    world.peer.send([b"1"])
    assert (world.asked, world.peer.queued) == (1, 1)
    world.peer.end("exited")
    with pytest.raises(PeerEnded):
        world.peer.send([b"2"])


@pytest.mark.parametrize("come", ["listening", "adopt"])
def test_a_process_that_ends_while_it_gets_what_was_kept(come: str) -> None:
    link = Link(broken=True)
    world = World(None, link)
    world.peer.send([b"1"])
    world.peer.listening() if come == "listening" else world.peer.adopt(link)
    world.peer.lost(link)  # as the connection reports it afterwards
    assert world.asked == 2 and world.peer.connection is None


def test_the_loss_of_another_connection_leaves_ours() -> None:
    link = Link()
    world = World(link)
    world.peer.send([b"1"])
    world.peer.lost(Link())  # the one they had dialled
    world.peer.send([b"2"])
    assert link.sent == [b"1", b"2"] and world.asked == 1
    world.peer.listening()
    assert not world.peer.asking and world.peer.connection is link


# --- another process in the place of the one that ended


def test_a_process_takes_the_place_of_one_that_ended() -> None:
    first, second = Link(), Link()
    world = World(first, second)
    world.peer.send([b"1"])
    world.peer.end("killed")
    world.peer.revive(1)
    assert (world.peer.incarnation, world.peer.ended, world.peer.connection) == (1, None, None)
    assert "idle" in repr(world.peer)
    world.peer.send([b"2"])
    assert (first.sent, second.sent, world.asked) == ([b"1"], [b"2"], 0)


def test_what_was_kept_for_the_one_before_is_not_sent_to_it() -> None:
    link = Link()
    world = World(None, link)
    world.peer.send([b"for the first"])
    world.peer.end("killed")
    world.peer.revive(1)
    assert world.peer.queued == 0
    world.peer.send([b"for the second"])
    world.peer.listening()
    assert link.sent == [b"for the second"]


def test_nor_when_its_end_was_not_heard_of() -> None:
    """The frames were kept while the agent was asked; its answer is that another process is there."""
    first, second = Link(), Link()
    world = World(first, second)
    world.peer.send([b"1"])
    first.lost = True
    world.peer.send([b"2"])
    assert world.peer.asking and world.peer.broken
    world.peer.revive(1)
    assert not world.peer.asking and not world.peer.broken
    world.peer.send([b"3"])
    assert second.sent == [b"3"]


def test_a_new_process_that_dialled_us_is_used_from_its_revival_on() -> None:
    link = Link()
    world = World()
    world.peer.end("killed")
    world.peer.adopt(link)
    assert world.peer.connection is None  # it counts as ended yet
    with pytest.raises(PeerEnded):
        world.peer.send([b"early"])
    world.peer.revive(3)
    world.peer.adopt(link)
    world.peer.send([b"1"])
    assert link.sent == [b"1"] and world.peer.incarnation == 3


def test_a_new_process_may_end_as_well() -> None:
    world = World(Link(), Link())
    for number in range(1, 3):
        world.peer.send([b"1"])
        world.peer.end(f"end {number}")
        with pytest.raises(PeerEnded) as caught:
            world.peer.send([b"2"])
        assert caught.value.why == f"end {number}"
        world.peer.revive(number)
    assert world.peer.incarnation == 2


def test_who_waits_for_room_goes_on_when_a_new_process_is_there() -> None:
    world = World(None)
    world.peer.send([b"1"])
    assert not world.peer.wait_room(0.0)
    waited: list[bool] = []
    thread = threading.Thread(target=lambda: waited.append(world.peer.wait_room(20.0)))
    thread.start()
    world.peer.revive(1)
    thread.join(20.0)
    assert waited == [True]


def test_the_loss_of_the_old_connection_is_not_that_of_the_new_one() -> None:
    first, second = Link(), Link()
    world = World(first, second)
    world.peer.send([b"1"])
    world.peer.end("killed")
    world.peer.revive(1)
    world.peer.send([b"2"])
    world.peer.lost(first)  # told late
    world.peer.send([b"3"])
    assert second.sent == [b"2", b"3"] and world.peer.connection is second


def test_queued_counts_the_connections_bytes() -> None:
    link = Link()
    world = World(link)
    world.peer.send([b"1"])
    link.queued = 70
    assert world.peer.queued == 70


def test_other_errors_of_dialling_reach_the_sender() -> None:
    def refuse(address: str) -> Connection:
        raise RuntimeError("the client is closed")

    peer = Peer("unix:/h/m.0", refuse, lambda peer: None)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the client is closed"):
            peer.send([b"1"])


# --- dialling fails, and that says nothing of the process


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EACCES])
def test_out_of_descriptors_it_is_dialled_again_and_nothing_is_lost(error: int) -> None:
    link = Link()
    world = World(error, error, link)
    for frame in (b"1", b"2"):
        world.peer.send([frame])
    assert (world.failed, world.asked, world.peer.queued) == ([error], 0, 2)  # the agent has nothing to say to that
    assert not world.peer.wait_room(0.0)
    world.peer.dial_again()
    assert world.failed == [error, error] and world.peer.asking
    world.peer.dial_again()
    world.peer.send([b"3"])
    assert link.sent == [b"1", b"2", b"3"] and world.peer.wait_room(0.0)
    world.peer.dial_again()
    assert world.peer.give_up() == [] and world.peer.connection is link


def test_when_it_was_about_to_be_sent_on_the_agents_word() -> None:
    link = Link()
    world = World(None, errno.EMFILE, link)
    world.peer.send([b"1"])
    world.peer.listening()
    assert (world.failed, world.asked, world.peer.asking) == ([errno.EMFILE], 1, True)
    world.peer.dial_again()
    assert link.sent == [b"1"]


def test_a_process_that_ended_meanwhile_is_asked_for() -> None:
    world = World(errno.EMFILE, None)
    world.peer.send([b"1"])
    world.peer.dial_again()
    assert world.asked == 1 and world.peer.asking
    world.peer.end("exited")
    world.peer.dial_again()
    assert world.peer.give_up() == [] and world.peer.ended == "exited"


def test_what_was_kept_too_long_is_given_up_and_the_next_is_tried_anew() -> None:
    link = Link()
    world = World(errno.EMFILE, link)
    world.peer.send([b"1"], port=7)
    assert world.peer.give_up() == [[b"1"]] and world.peer.take_unsent() == {7}
    assert world.peer.queued == 0 and world.peer.wait_room(0.0)
    assert world.peer.ever_broke  # whoever is there hears with the next hello that numbers may be missing
    world.peer.send([b"2"])
    assert link.sent == [b"2"]


# --- memory


@pytest.mark.parametrize("ends_first", [True, False])
def test_nothing_of_a_connection_stays_with_a_process_that_ended(ends_first: bool) -> None:
    link = Link()
    world = World(link)
    world.peer.send([b"1"])
    if not ends_first:
        link.lost = True
        world.peer.lost(link)
    world.peer.end("killed")
    world.peer.lost(link, port=3)  # as the connection reports it when it is closed
    gone = weakref.ref(link)
    del link
    gc.collect()
    assert gone() is None and world.peer.unsent == set()


def test_a_connection_that_breaks_while_it_is_made_is_dialled_again() -> None:
    """Its agent has said that the process lives, and says nothing more unless that changes."""
    link = Link()
    world = World(None, errno.EPIPE, errno.ECONNRESET, link)
    world.peer.send([b"1"])
    world.peer.listening()
    assert (world.asked, world.failed) == (1, [errno.EPIPE])
    world.peer.dial_again()
    assert world.asked == 2
    world.peer.listening()
    assert link.sent == [b"1"]


def test_a_connection_that_breaks_while_another_is_dialled_is_told_of_too() -> None:
    """The other side had dialled as well, and may have answered on the connection that broke."""
    theirs = Link()
    world = World(errno.ENOMEM, link := Link())
    peer = world.peer
    peer.send([b"1"], port=7)
    assert world.failed == [errno.ENOMEM] and (peer.asking, peer.broken, world.asked) == (True, False, 0)
    peer.lost(theirs)
    assert peer.broken and world.asked == 1
    peer.listening()
    assert link.sent == [b"1"] and not peer.broken and peer.take_unsent() == {7}


def test_what_was_kept_and_sent_since_is_at_stake_when_that_connection_breaks() -> None:
    world = World(errno.ENOMEM, link := Link())
    peer = world.peer
    peer.send([b"1"], port=7)
    peer.dial_again()
    assert link.sent == [b"1"] and peer.unsent == set()
    peer.lost(Link())  # theirs, on which the answer may have come
    assert peer.broken and peer.take_unsent() == set()


def test_who_sends_to_a_process_that_cannot_be_dialled_is_kept_by_nothing() -> None:
    class Held:
        pass

    world = World(None, None)

    def sends() -> weakref.ref[Held]:
        held = Held()
        world.peer.send([b"1"])
        world.peer.dial_again()
        return weakref.ref(held)

    gc.disable()
    try:
        assert sends()() is None
    finally:
        gc.enable()


def test_what_is_sent_in_the_midst_of_a_step_is_sent_behind_it() -> None:
    """By a finalizer, or a handler of signals, of the thread that takes the step."""
    link, left = Link(), []
    peer: Peer

    def dial(address: str) -> Connection:
        assert peer.send([b"within"], port=2) is None and peer.connect() is None
        return link

    peer = Peer("unix:/h/m.0", dial, lambda peer: None, later=left.append)
    assert peer.send([b"first"], port=1) is link
    assert link.sent == [b"within", b"first"] and left == [peer]  # the dialling sends on what was kept
    link.on_send = lambda: link.sent.count(b"more") or peer.send([b"more"])
    peer.go_on()
    assert link.sent == [b"within", b"first"] and peer.queued == 0


@pytest.mark.parametrize("found", [None, errno.EMFILE, Link()])
def test_what_was_sent_in_the_midst_of_giving_up_is_dialled_for(found: Link | int | None) -> None:
    world = World(errno.EMFILE, found)
    world.peer.send([b"given up"])
    with world.peer._lock:
        assert len(world.peer.give_up()) == 1 and world.peer.send([b"within"]) is None
    world.peer.go_on()
    if isinstance(found, Link):
        assert found.sent == [b"within"]
    else:
        assert world.peer.asking and (world.asked, world.failed) == (
            (1, [errno.EMFILE]) if found is None else (0, [errno.EMFILE] * 2)
        )
