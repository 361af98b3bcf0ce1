"""The sampler: what it sees of threads that run, wait and are many."""

from __future__ import annotations

import sys
import threading

import msgspec
import pytest

from monarch._mesh.inspection import sampler
from monarch._mesh.inspection.sampler import IDLE, OTHER, Samples, SamplingOptions, StackCounts
from monarch._runtime.context import here
from monarch.actor import Actor, endpoint, this_host
from monarch.testing import InProcessCluster


class _Looked(Actor):
    """Looks at its own process from another thread, while its endpoint waits for that."""

    @endpoint
    def look(self, wanted: dict[str, object]) -> bytes:
        proc, replies, there = here(), list[bytes](), threading.Event()
        argument = msgspec.msgpack.encode({"duration_s": 0.05, "rate_hz": 200.0} | wanted)

        def look() -> None:
            assert there.wait(60)
            replies.append(sampler.answer(proc, argument))

        looker = threading.Thread(target=look, name="monarch-answer")
        looker.start()
        self._wait_in_here(looker, there)
        return replies[0]

    def _wait_in_here(self, looker: threading.Thread, there: threading.Event) -> None:
        there.set()
        looker.join(60)


def _seen(**wanted: object) -> Samples:
    with InProcessCluster():
        procs = this_host().spawn_procs(per_host={"gpus": 1})
        idle = procs.spawn("idle", _Looked)
        idle.initialized.get(timeout=300)
        return sampler.decode(procs.spawn("busy", _Looked).look.call_one(wanted).get(timeout=300))


def test_it_sees_where_an_endpoint_is_and_leaves_out_who_waits() -> None:
    seen = _seen()
    for stack in seen.samples:
        frames = stack.split(";")
        assert frames[0] == "busy"
        assert frames[1].startswith("_Looked.look (test_sampler.py:")  # nothing of ours above it
        assert frames[2].startswith("_Looked._wait_in_here (test_sampler.py:")
    assert sum(seen.samples.values()) == seen.taken > 0
    assert seen.idle >= seen.taken
    assert seen.who == ["busy[0]", "idle[0]"]


def test_threads_and_idle_ones_on_request() -> None:
    seen = _seen(threads=True, idle=True, which="all")
    assert f"idle[0];{IDLE}" in seen.samples
    assert any(stack.startswith("busy[0];_Looked.look") for stack in seen.samples)


@pytest.mark.parametrize(
    ("seconds", "hertz"), [(0.0, 10.0), (301.0, 10.0), (1.0, 0.5), (1.0, 2000.0), (float("nan"), 10.0)]
)
def test_bounds_of_a_profile(seconds: float, hertz: float) -> None:
    with pytest.raises(ValueError, match="a profile takes"):
        sampler.check(seconds, hertz)


def test_stacks_are_bounded_in_number_and_in_bytes() -> None:
    few = StackCounts(most=2)
    for name in ("a", "b", "c", "d", "a"):
        few.count(name)
    assert few.counts == {"a": 2, "b": 1, OTHER: 2}
    assert few.left_out == 2
    small = StackCounts(most_bytes=3)
    small.count("abc")
    small.count("d")
    assert small.counts == {"abc": 1, OTHER: 1}


def test_a_deep_stack_is_cut_in_the_middle() -> None:
    def deeper(count: int) -> None:
        if count:
            deeper(count - 1)
        else:
            stacks.add("main", sys._getframe())

    stacks = StackCounts()
    deeper(500)
    (stack,) = stacks.counts
    assert len(stack.split(";")) == 202
    assert " frames)" in stack


def test_names_of_threads_are_fit_to_send_and_have_an_end() -> None:
    stacks = StackCounts()
    stacks.add("caf\udce9;\n" + "x" * 10**6, None)
    (stack,) = stacks.counts
    assert stack.startswith("caf\\udce9, x") and len(stack) <= 210
    assert sampler.decode(msgspec.msgpack.encode(Samples(stacks.counts, 1))).samples == stacks.counts


def test_what_is_wanted_has_defaults() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode({}), type=SamplingOptions).rate_hz == 100.0
