"""Sessions as the controller knows them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from monarch.debugger import debug_sessions
from monarch.debugger.debug_sessions import DebugSession, DebugSessionInfo, Sessions
from monarch.debugger.prompt_commands import selection


def session(name: str = "worker", rank: int = 0, **more: Any) -> DebugSession:
    info = DebugSessionInfo(name, rank, {"gpus": rank}, "host", "module.function", 7)
    return DebugSession(info, f"unix:/x/p.{rank}", 100 + rank, "stands", **more)


def test_input_and_output() -> None:
    async def main() -> None:
        one = session()
        one.write("> here\n(Pdb) ", "module.other", 8)
        assert (one.info.function, one.info.lineno) == ("module.other", 8)
        reading = asyncio.ensure_future(one.read())
        await asyncio.sleep(0)
        assert one.waits
        heard: list[int] = []
        assert one.attach(lambda: heard.append(1)) == (False, "> here\n(Pdb) ")
        assert one.type("p x")
        assert await reading == "p x\n"
        one.write("5\n(Pdb) ", "", 0)
        assert heard
        assert one.fresh() == "5\n(Pdb) "
        assert one.fresh() == ""
        one.detach()
        one.write("more", "", 0)
        assert one.attach(lambda: None) == (True, "5\n(Pdb) more"), "what came since the last input"

    asyncio.run(main())


def test_typing_ahead_is_bounded() -> None:
    one = session()
    assert all(one.type("n") for _ in range(debug_sessions._INPUT))
    assert not one.type("n")


def test_output_is_bounded() -> None:
    one = session()
    for number in range(100):
        one.write(f"{number:03}" + "x" * 9_997, "", 0)
    _, kept = one.attach(lambda: None)
    assert len(kept) <= debug_sessions._OUTPUT
    assert "099xxx" in kept
    assert "001xxx" not in kept


def test_what_waits_for_somebody_who_does_not_read_is_bounded() -> None:
    one = session()
    one.attach(lambda: None)
    for number in range(1_000):
        one.write(f"{number:03}" + "x" * 9_997, "", 0)
    kept = one.fresh()
    assert len(kept) < 2 * debug_sessions._FRESH
    assert "999xxx" in kept
    assert kept.startswith(debug_sessions._LEFT_OUT)
    one.write("more", "", 0)
    assert one.fresh() == "more"


def test_an_end_ends_the_wait() -> None:
    async def main() -> None:
        ended, released, impatient = session(), session(), session(patience=0.0)
        reads = [asyncio.ensure_future(one.read()) for one in (ended, released, impatient)]
        await asyncio.sleep(0)
        ended.end()
        released.release()
        assert await asyncio.gather(*reads) == [None, None, None]
        assert impatient.let_go

    asyncio.run(main())


def test_patience_is_for_those_whom_nobody_looks_at() -> None:
    async def main() -> None:
        one = session(patience=3600.0)
        one.attach(lambda: None)
        assert one._patience_left() is None
        one.detach()
        assert 3500 < (one._patience_left() or 0) <= 3600

    asyncio.run(main())


def test_names() -> None:
    async def main() -> None:
        them = Sessions()
        first, second, odd = them.start(session()), them.start(session()), them.start(session("été 1.x"))
        assert first.info.actor_name == "worker"
        assert second.info.actor_name == "worker-2", "another actor of that name and rank"
        assert odd.info.actor_name == "_t__1_x"
        assert them.find("worker", 0) is first
        with pytest.raises(KeyError, match="No debug session for rank 5 for actor worker"):
            them.find("worker", 5)
        with pytest.raises(KeyError, match="No debug sessions for actor x"):
            them.find("x", 5)
        with pytest.raises(KeyError, match="No debug sessions for actor x"):
            them.select("x", selection(":"))

    asyncio.run(main())


def test_a_thousand() -> None:
    async def main() -> None:
        them = Sessions()
        waiting = asyncio.ensure_future(them.pending())
        await asyncio.sleep(0)
        assert not waiting.done()
        everything = [them.start(session(rank=rank)) for rank in range(1_000)]
        await waiting
        assert len(them.page().splitlines()) == 2 * 1_000 + 3
        assert them.select("worker", selection("::100")) == everything[::100]
        reads = [asyncio.ensure_future(one.read()) for one in everything]
        await asyncio.sleep(0)
        for one in them.all():
            one.type("c")
        assert await asyncio.gather(*reads) == ["c\n"] * 1_000
        for one in everything:
            them.end(one)
        assert not len(them)
        assert not them._began.is_set()

    asyncio.run(main())
