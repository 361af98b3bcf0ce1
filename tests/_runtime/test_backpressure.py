"""Tests of which senders have to wait, and until when; no process and no socket."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from monarch._errors import BackpressureTimeout
from monarch._runtime.backpressure import Backpressure
from monarch._wire.message import Pause
from monarch.config import settings
from tests.support.patience import TIMEOUT

AGENT, M0, M1 = "unix:/h/agent", "unix:/h/m.0", "unix:/h/m.1"


class Way:
    """A Peer, and the connection to it."""

    def __init__(self, queued: int = 0) -> None:
        self.queued = queued
        self.connection = SimpleNamespace(queued=queued)
        self.waited: list[float] = []

    def wait_room(self, timeout: float) -> bool:
        self.waited.append(timeout)
        return self.queued == 0


def make(may_wait: bool = True, **peers: Way) -> Backpressure:
    known: Any = {f"unix:/h/{name.replace('_', '.')}": way for name, way in peers.items()}
    return Backpressure(AGENT, known, 100, 7, lambda: may_wait)


def set_timeout(seconds: float) -> None:
    settings.LAYERS.set_runtime({**settings.LAYERS.runtime(), "message_delivery_timeout": seconds})


def test_nobody_waits_for_processes_that_are_not_known() -> None:
    backpressure = make()
    assert not backpressure.must_wait(M0, "a")
    backpressure.wait_room(M0, "a")


@pytest.mark.parametrize(("queued", "full"), [(0, False), (99, False), (100, True)])
def test_a_full_queue_makes_all_senders_to_that_process_wait(queued: int, full: bool) -> None:
    backpressure = make(m_0=Way(queued))
    assert backpressure.must_wait(M0, "a") is backpressure.must_wait(M0, "b") is full
    assert not backpressure.must_wait(M1, "a")


def test_frames_kept_for_a_process_without_a_connection_count() -> None:
    way = Way(100)
    way.connection = None  # type: ignore[assignment]
    assert make(m_0=way).must_wait(M0, "a")


def test_a_pause_is_for_one_actor_of_one_process() -> None:
    backpressure = make()
    backpressure.set_pause(M0, Pause("a", True))
    asked = [(M0, "a"), (M0, "b"), (M1, "a")]
    assert [backpressure.must_wait(*who) for who in asked] == [True, False, False]
    backpressure.set_pause(M0, Pause("b", False))  # of one that was not paused
    backpressure.set_pause(M0, Pause("a", False))
    assert not any(backpressure.must_wait(*who) for who in asked)


def test_the_texts_say_what_is_full() -> None:
    set_timeout(0.001)
    with pytest.raises(BackpressureTimeout, match=r"has had 100 bytes queued .* for 0\.001 s"):
        make(m_0=Way(100)).wait_room(M0, "a")
    backpressure = make()
    backpressure.set_pause(M0, Pause("a", True))
    with pytest.raises(BackpressureTimeout, match=r"actor a at unix:/h/m\.0 has had 7 messages waiting"):
        backpressure.wait_room(M0, "a")


def test_on_the_io_thread_nothing_waits() -> None:
    backpressure = make(may_wait=False, m_0=Way(100))
    backpressure.set_pause(M0, Pause("a", True))
    backpressure.wait_room(M0, "a")


@pytest.mark.parametrize(
    "end",
    [
        lambda backpressure: backpressure.set_pause(M0, Pause("a", False)),
        lambda backpressure: backpressure.process_ended(M0),
        lambda backpressure: backpressure.release_all(),
    ],
    ids=["resumed", "process ended", "this process ends"],
)
def test_what_ends_a_pause_wakes_who_waits(end: Any) -> None:
    set_timeout(TIMEOUT)
    backpressure = make()
    backpressure.set_pause(M0, Pause("a", True))
    waiting = threading.Thread(target=backpressure.wait_room, args=(M0, "a"), daemon=True)
    waiting.start()
    backpressure.process_ended(M1)  # not theirs
    assert backpressure.must_wait(M0, "a")
    end(backpressure)
    waiting.join(TIMEOUT)
    assert not waiting.is_alive() and not backpressure.must_wait(M0, "a")


def test_a_cast_waits_for_the_agent_and_for_every_paused_receiver() -> None:
    set_timeout(0.001)
    make().wait_room_for_all([M0, M1], "a")
    with pytest.raises(BackpressureTimeout, match="connection to unix:/h/agent"):
        make(agent=Way(100)).wait_room_for_all([M0, M1], "a")
    backpressure = make()
    backpressure.set_pause(M1, Pause("a", True))
    backpressure.wait_room_for_all([M0, M1], "b")
    with pytest.raises(BackpressureTimeout, match=r"actor a at unix:/h/m\.1"):
        backpressure.wait_room_for_all([M0, M1], "a")
