"""What the processes write, and where it comes out."""

from __future__ import annotations

import asyncio
import logging
import re
import textwrap
import warnings
from typing import Any

import pytest

from monarch.actor import ProcMesh
from tests.support.tiers import full

pytestmark = pytest.mark.procs
TIMEOUT = 30

ACTOR = """
    import asyncio, logging, os, sys
    import monarch.actor
    from monarch.actor import Actor, config, current_rank, endpoint, this_host
    from monarch.config import configure

    class Talker(Actor):
        @endpoint
        def say(self, *lines, err=False):
            for line in lines:
                print(line, file=sys.stderr if err else sys.stdout)
        @endpoint
        def say_rank(self): print(f"rank {current_rank().rank}")
        @endpoint
        def write(self, data): os.write(1, data)
        @endpoint
        def set_up(self, prefix=True):
            config.prefix_python_logs_with_actor = prefix
            logging.basicConfig(format="%(levelname)s|%(message)s", stream=sys.stdout, force=True)
        @endpoint
        def log(self, level, text, *args): logging.getLogger("user").log(level, text, *args)
        @endpoint
        def own_log(self, text): self.logger.warning(text)
        @endpoint
        def level(self): return logging.getLogger().level
        @endpoint
        def handlers(self): return len(logging.getLogger().handlers)
        @endpoint
        def late_handler(self, text):
            record = []
            class Keep(logging.Handler):
                def emit(self, r): record.append((r.getMessage(), getattr(r, "actor_prefix", None)))
            logger = logging.getLogger("elsewhere")
            handler = Keep()
            logger.addHandler(handler)
            logger.warning(text)
            logger.removeHandler(handler)
            return record
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
            t.say_rank.call().get(timeout=30)
            t.slice(gpus=0).say.call_one("to stderr", err=True).get(timeout=30)
            procs.stop().get(timeout=30)
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
            t.say.call_one("now").get(timeout=30)
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
            t.say.call_one(*[f"line {n}" for n in range(1000)]).get(timeout=30)
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
            print(t.level.call_one().get(timeout=30), t.handlers.call_one().get(timeout=30))
            t.log.call_one(logging.INFO, "too quiet").get(timeout=30)
            t.log.call_one(logging.WARNING, "loud enough").get(timeout=30)
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
            t.set_up.call_one().get(timeout=30)
            t.log.call_one(logging.INFO, "hello %s", "you").get(timeout=30)
            t.log.call_one(logging.INFO, "").get(timeout=30)
            t.own_log.call_one("own").get(timeout=30)
            procs.stop().get(timeout=30)
            """
        )
    )
    who = "[actor=<root>.<__main__.Talker talker{'gpus': 1/2}>] "
    assert done.stdout.splitlines() == [f"INFO|{who}hello you", "INFO|", f"WARNING|{who}own"]


@full
def test_handlers_added_later_have_the_prefix_too(scripts: Any) -> None:
    done = scripts.run(
        program(
            """
            t = this_host().spawn_procs().spawn("talker", Talker)
            ((message, prefix),) = t.late_handler.call_one("late").get(timeout=30)
            print(message, prefix, sep="|")
            """
        )
    )
    message, prefix = done.stdout.strip().split("|")
    assert message == "[actor=<root>.<__main__.Talker talker>] late"
    assert "<root>.<__main__.Talker talker>" in prefix


@full
def test_the_prefix_can_be_switched_off(scripts: Any) -> None:
    done = scripts.run(
        program(
            """
            t = this_host().spawn_procs().spawn("talker", Talker)
            t.set_up.call_one(prefix=False).get(timeout=30)
            t.log.call_one(logging.INFO, "bare").get(timeout=30)
            """
        )
    )
    assert done.stdout.splitlines() == ["INFO|bare"]


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
            t.set_up.call_one().get(timeout=30)
            asyncio.run(procs.logging_option(level=logging.ERROR))
            t.log.call_one(logging.WARNING, "below").get(timeout=30)
            t.log.call_one(logging.ERROR, "above").get(timeout=30)
            print(t.level.call_one().get(timeout=30) == logging.ERROR)
            """
        )
    )
    lines = done.stdout.splitlines()
    assert "True" in lines and not any("below" in line for line in lines) and any("above" in line for line in lines)


# --- forwarding


FORWARD = """
    configure(enable_log_forwarding=True)
    procs = this_host().spawn_procs({"gpus": 2})
    t = procs.spawn("talker", Talker)
    t.level.call().get(timeout=30)
"""


def forwarded(body: str) -> str:
    return program(textwrap.dedent(FORWARD) + textwrap.dedent(body))


def streamed(text: str) -> list[tuple[str, str]]:
    """(rank, line) of the lines in the form [host proc] [rank] line."""
    return re.findall(r"^\[\S+ [^\]]+\] \[(\d+)\] (.*)$", text, flags=re.MULTILINE)


@full
def test_forwarded_output_is_still_shown_as_it_is(scripts: Any) -> None:
    done = scripts.run(
        forwarded(
            """
            t.say_rank.call().get(timeout=30)
            t.slice(gpus=0).say.call_one("to stderr", err=True).get(timeout=30)
            procs.stop().get(timeout=30)
            """
        )
    )
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank")) == [
        "rank 0",
        "rank 1",
    ]
    assert "to stderr" in done.stderr.splitlines()
    assert streamed(done.stdout) == []


@full
def test_streamed_lines_say_where_they_come_from(scripts: Any) -> None:
    done = scripts.run(
        forwarded(
            """
            asyncio.run(procs.logging_option(stream_to_client=True, aggregate_window_sec=None))
            t.say_rank.call().get(timeout=30)
            t.slice(gpus=1).say.call_one("to stderr", err=True).get(timeout=30)
            procs.stop().get(timeout=30)
            """
        )
    )
    assert sorted(streamed(done.stdout)) == [("0", "rank 0"), ("1", "rank 1")]
    assert streamed(done.stderr) == [("1", "to stderr")]
    assert "rank 0" not in done.stdout.splitlines()  # once is enough


@full
def test_streaming_can_be_switched_off_again(scripts: Any) -> None:
    done = scripts.run(
        forwarded(
            """
            asyncio.run(procs.logging_option(stream_to_client=True))
            asyncio.run(procs.logging_option(stream_to_client=False))
            t.say_rank.call().get(timeout=30)
            procs.stop().get(timeout=30)
            """
        )
    )
    assert streamed(done.stdout) == []
    assert "rank 0" in done.stdout.splitlines()


def groups(text: str) -> list[tuple[int, str]]:
    """(count, first line) of each group of the aggregated blocks."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    found = re.findall(r"^\[(\d+) similar log lines?\]\s+(?:\[[\d,-]+\] )?(.*)$", plain, flags=re.MULTILINE)
    return [(int(count), line) for count, line in found]


def test_equal_lines_of_several_ranks_are_folded_and_stop_shows_them(scripts: Any) -> None:
    done = scripts.run(
        forwarded(
            """
            asyncio.run(procs.logging_option(stream_to_client=True, aggregate_window_sec=600))
            t.say.call("said by both").get(timeout=30)
            procs.stop().get(timeout=30)
            """
        )
    )
    assert ">>> Aggregated Logs (" in done.stdout and "<<< Aggregated Logs (" in done.stdout
    assert groups(done.stdout) == [(2, "said by both")]


@full
def test_repeated_lines_of_one_rank_are_not_folded(scripts: Any) -> None:
    done = scripts.run(
        forwarded(
            """
            asyncio.run(procs.logging_option(stream_to_client=True, aggregate_window_sec=600))
            t.slice(gpus=0).say.call_one("again", "again", "again").get(timeout=30)
            procs.stop().get(timeout=30)
            """
        )
    )
    assert groups(done.stdout) == [(1, "again")] * 3


@full
def test_lines_that_differ_are_not_folded(scripts: Any) -> None:
    done = scripts.run(
        forwarded(
            """
            asyncio.run(procs.logging_option(stream_to_client=True, aggregate_window_sec=600))
            t.say_rank.call().get(timeout=30)
            procs.stop().get(timeout=30)
            """
        )
    )
    assert sorted(groups(done.stdout)) == [(1, "rank 0"), (1, "rank 1")]


@full
def test_ending_the_window_shows_what_is_pending(scripts: Any) -> None:
    process = scripts.start(
        forwarded(
            """
            asyncio.run(procs.logging_option(stream_to_client=True, aggregate_window_sec=600))
            t.say.call("pending").get(timeout=30)
            asyncio.run(procs.logging_option(stream_to_client=True, aggregate_window_sec=None))
            sys.stdin.readline()
            """
        )
    )
    seen = ""
    while "<<< Aggregated Logs" not in seen:  # shown while the program still runs
        line = process.stdout.readline()
        assert line, seen
        seen += line
    assert groups(seen) == [(2, "pending")]
    process.communicate("go on\n", timeout=TIMEOUT)
    assert process.returncode == 0


@full
def test_a_very_long_line_is_cut(scripts: Any) -> None:
    done = scripts.run(
        forwarded(
            """
            asyncio.run(procs.logging_option(stream_to_client=True))
            t.slice(gpus=0).say.call_one("x" * 100_000).get(timeout=30)
            procs.stop().get(timeout=30)
            """
        )
    )
    ((rank, line),) = streamed(done.stdout)
    assert rank == "0" and line.startswith("x" * 4000) and len(line) < 5000
