"""Tests of what the processes write, and where it comes out."""

from __future__ import annotations

import asyncio
import logging
import textwrap
import warnings
from typing import Any

import pytest

from monarch.actor import ProcMesh
from tests.support.patience import TIMEOUT
from tests.support.tiers import full

pytestmark = pytest.mark.procs

ACTOR = """
    import asyncio, logging, sys
    import monarch.actor
    from monarch.actor import Actor, current_rank, endpoint, this_host

    class Talker(Actor):
        @endpoint
        def say(self, *lines, err=False):
            for line in lines:
                print(line, file=sys.stderr if err else sys.stdout)
        @endpoint
        def say_rank(self): print(f"rank {current_rank().rank}")
        @endpoint
        def set_up(self):
            logging.basicConfig(format="%(levelname)s|%(message)s", stream=sys.stdout, force=True)
        @endpoint
        def log(self, level, text, *args): logging.getLogger("user").log(level, text, *args)
        @endpoint
        def own_log(self, text): self.logger.warning(text)
        @endpoint
        def level(self): return logging.getLogger().level
        @endpoint
        def handlers(self): return len(logging.getLogger().handlers)
"""


def program(body: str) -> str:
    return textwrap.dedent(ACTOR) + textwrap.dedent(body)


# --- inherited output


def test_what_actors_print_comes_out_of_the_client_as_it_is(scripts: Any) -> None:
    done = scripts.run(
        program(
            """
            procs = this_host().spawn_procs({"gpus": 2})
            t = procs.spawn("talker", Talker)
            t.say_rank.call().get(timeout=300)
            t.slice(gpus=0).say.call_one("to stderr", err=True).get(timeout=300)
            procs.stop().get(timeout=300)
            """
        )
    )
    assert sorted(done.stdout.splitlines()) == ["rank 0", "rank 1"]
    assert "to stderr" in done.stderr.splitlines()


@full
def test_lines_come_out_when_they_are_written_and_not_at_the_end(scripts: Any) -> None:
    process = scripts.start(
        program(
            """
            t = this_host().spawn_procs().spawn("talker", Talker)
            t.say.call_one("now").get(timeout=300)
            sys.stdin.readline()
            """
        )
    )
    assert process.stdout.readline() == "now\n"  # the program ends only after this
    _, err = process.communicate("go on\n", timeout=TIMEOUT)
    assert process.returncode == 0, err


@full
def test_output_of_a_program_that_ends_at_once_is_not_lost(scripts: Any) -> None:
    done = scripts.run(
        program(
            """
            t = this_host().spawn_procs().spawn("talker", Talker)
            t.say.call_one(*[f"line {n}" for n in range(1000)]).get(timeout=300)
            """
        )
    )
    assert done.stdout.splitlines() == [f"line {n}" for n in range(1000)]


# --- Python's logging


@full
def test_the_root_logger_of_a_process_is_at_info_without_handlers(scripts: Any) -> None:
    done = scripts.run(
        program(
            """
            t = this_host().spawn_procs().spawn("talker", Talker)
            print(t.level.call_one().get(timeout=300), t.handlers.call_one().get(timeout=300))
            t.log.call_one(logging.INFO, "too quiet").get(timeout=300)
            t.log.call_one(logging.WARNING, "loud enough").get(timeout=300)
            """
        )
    )
    assert done.stdout.split() == [str(logging.INFO), "0"]
    assert "loud enough" in done.stderr and "too quiet" not in done.stderr


def test_log_messages_of_an_actor_say_which(scripts: Any) -> None:
    done = scripts.run(
        program(
            """
            procs = this_host().spawn_procs({"gpus": 2})
            t = procs.spawn("talker", Talker).slice(gpus=1)
            t.set_up.call_one().get(timeout=300)
            t.log.call_one(logging.INFO, "hello %s", "you").get(timeout=300)
            t.log.call_one(logging.INFO, "").get(timeout=300)
            t.own_log.call_one("own").get(timeout=300)
            procs.stop().get(timeout=300)
            """
        )
    )
    who = "[actor=<root>.<__main__.Talker talker{'gpus': 1/2}>] "
    assert done.stdout.splitlines() == [f"INFO|{who}hello you", "INFO|", f"WARNING|{who}own"]


@full
def test_the_client_has_a_prefix_as_well(scripts: Any) -> None:
    done = scripts.run(
        program(
            """
            logging.basicConfig(format="%(message)s", stream=sys.stdout, level=logging.INFO)
            monarch.actor.context()
            logging.info("from the client")
            """
        )
    )
    assert done.stdout.splitlines() == ["[actor=<root>] from the client"]


# --- logging_option


@pytest.mark.parametrize("level", [-1, 256])
def test_a_level_is_between_0_and_255(procs2: ProcMesh, level: int) -> None:
    with pytest.raises(ValueError, match="Invalid logging level"):
        asyncio.run(procs2.logging_option(level=level))


def test_a_window_needs_streaming(procs2: ProcMesh) -> None:
    with pytest.raises(RuntimeError, match="cannot set aggregate window without streaming to client"):
        asyncio.run(procs2.logging_option(aggregate_window_sec=3))


def test_streaming_that_was_not_prepared_warns(procs2: ProcMesh) -> None:
    async def main() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            await procs2.logging_option(stream_to_client=True)
        assert any(w.category is UserWarning and "no effect" in str(w.message) for w in caught)

    asyncio.run(main())


@full
def test_the_level_of_the_processes_can_be_set(scripts: Any) -> None:
    done = scripts.run(
        program(
            """
            procs = this_host().spawn_procs()
            t = procs.spawn("talker", Talker)
            t.set_up.call_one().get(timeout=300)
            asyncio.run(procs.logging_option(level=logging.ERROR))
            t.log.call_one(logging.WARNING, "below").get(timeout=300)
            t.log.call_one(logging.ERROR, "above").get(timeout=300)
            print(t.level.call_one().get(timeout=300) == logging.ERROR)
            """
        )
    )
    lines = done.stdout.splitlines()
    assert "True" in lines and not any("below" in line for line in lines) and any("above" in line for line in lines)


# --- forwarding
