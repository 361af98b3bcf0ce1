"""Tests that what programs catch is handled; what no call tells ends them. With real processes that die."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.tiers import first_of, full

pytestmark = pytest.mark.procs

PRELUDE = """
    import asyncio, logging, os, sys, threading, time
    from monarch.actor import Actor, ActorError, SupervisionError, endpoint, this_host

    class A(Actor):
        @endpoint
        def die(self): os._exit(3)
        @endpoint
        def fail(self): raise ValueError("as asked")
        @endpoint
        def alive(self): return "alive"
        @endpoint
        def wait(self): threading.Event().wait()

    class Bad(Actor):
        def __init__(self): raise OSError("no room")
        @endpoint
        def alive(self): return "alive"

    class Parent(Actor):
        @endpoint
        def try_it(self):
            self.kids = this_host().spawn_procs().spawn("kid", A)
            try:
                self.kids.die.call_one().get()
            except SupervisionError:
                return "caught"
        @endpoint
        def alive(self): return "alive"

    def caught(call):
        try:
            call()
        except SupervisionError:
            return True

    procs = this_host().spawn_procs({"gpus": 2})
    a, b = procs.spawn("a", A), procs.spawn("b", A)
    one = a.slice(gpus=0)
    a.alive.call().get(), b.alive.call().get()
"""
CASES = {
    "call_one": "assert caught(lambda: one.die.call_one().get())",
    "call": "assert caught(lambda: a.die.call().get())",
    "choose": "assert caught(lambda: one.die.choose().get())",
    "stream": "assert caught(lambda: [f.get() for f in a.die.stream()])",
    "exception()": "assert isinstance(one.die.call_one().exception(), SupervisionError)",
    "another mesh of the process": "assert caught(lambda: one.die.call_one().get()); assert caught(b.alive.call().get)",
    "several calls": "calls = [m.wait.call() for m in (b, procs.spawn('c', A))]; "
    "assert caught(lambda: one.die.call_one().get()); "
    "assert all(caught(c.get) for c in calls)",
    "later": "f = one.die.call_one(); b.slice(gpus=1).alive.call_one().get(); time.sleep(0.5); assert caught(f.get)",
    "with_timeout": "assert caught(lambda: one.die.with_timeout(30).call_one().get())",
    "a thread": "t = threading.Thread(target=lambda: caught(lambda: one.die.call_one().get())); t.start(); t.join()",
    "constructor": "c = procs.spawn('bad', Bad); assert caught(lambda: c.alive.call().get())",
    "an actor": "p = procs.spawn('p', Parent); assert p.slice(gpus=0).try_it.call_one().get() == 'caught'; "
    "time.sleep(0.3); assert len(p.alive.call().get()) == 2",
    "asyncio": "async def main():\n"
    "    done = await asyncio.gather(one.die.call_one().as_asyncio(), b.wait.call().as_asyncio(), return_exceptions=True)\n"
    "    assert all(isinstance(e, SupervisionError) for e in done), done\n"
    "    await asyncio.sleep(0.3)\n"
    "asyncio.run(main())",
}


def program(scripts: Any, source: str) -> Any:
    return scripts.run(
        re.sub("(?m)^    ", "", PRELUDE) + source + "\ntime.sleep(0.3)\nprint('survived')\n", check=False
    )


@pytest.mark.parametrize("case", first_of(CASES))
def test_what_is_caught_is_handled(scripts: Any, case: str) -> None:
    done = program(scripts, CASES[case])
    assert (done.returncode, done.stdout, done.stderr) == (0, "survived\n", "")


@pytest.mark.parametrize(
    "source",
    first_of(["f = one.die.call_one(); del f; time.sleep(30)", "one.die.broadcast(); time.sleep(30)",
     pytest.param("f = one.die.call_one(); time.sleep(30)", marks=full)]),
    ids=["dropped", "broadcast", "kept and never looked at"],
)  # fmt: skip
def test_what_no_call_tells_ends_the_program(scripts: Any, source: str) -> None:
    done = program(scripts, source)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "UnhandledFaultError" in done.stderr


@full
def test_what_is_not_caught_ends_the_program_with_that_traceback(scripts: Any) -> None:
    done = program(scripts, "one.die.call_one().get()")
    assert done.returncode == 1 and "monarch._errors.SupervisionError: " in done.stderr
    assert "Unhandled monarch error" not in done.stderr


@full
def test_the_error_of_a_dropped_call_is_logged_once_with_its_line(scripts: Any) -> None:
    done = program(scripts, "a.fail.call()\nb.fail.call().exception()\na.alive.call().get()")
    assert (done.returncode, done.stdout) == (0, "survived\n")
    assert done.stderr.count("ValueError: as asked") == 1
    assert re.search(r"a\.fail\(\) raised, .*called at .*program1\.py:\d+, in <module>", done.stderr)


@full
def test_an_error_says_who_of_how_many_raised(scripts: Any) -> None:
    done = program(scripts, "print(a.fail.call().exception())")
    assert re.search(r"Rank 0 \(gpus=0\) on .*, pid \d+; 2 of 2 raised", done.stdout), done.stdout


@full
@pytest.mark.slow
def test_two_hundred_programs_survive(scripts: Any) -> None:
    for _ in range(200):
        assert program(scripts, CASES["call_one"]).stdout == "survived\n"
