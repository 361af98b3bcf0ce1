"""`logging_option` with real processes: streaming, folding, and when output is complete.

With streaming on a line is shown once, in its streamed or folded form.
"""

from __future__ import annotations

import os
import pty
import re
import select
import textwrap
from typing import Any

import pytest

from tests.support.patience import TIMEOUT
from tests.support.tiers import first_of, full

pytestmark = pytest.mark.procs

ACTOR = """
    import asyncio, os, sys, warnings
    from monarch.actor import Actor, current_rank, endpoint, this_host
    from monarch.config import configure

    class Talker(Actor):
        @endpoint
        def say(self, *lines, err=False):
            for line in lines:
                print(line, file=sys.stderr if err else sys.stdout)
        @endpoint
        def say_rank(self): print("rank", current_rank().rank)
        @endpoint
        def write(self, data): os.write(1, data)
        @endpoint
        def pids(self): return os.getpid()
        def __cleanup__(self, exc): print("cleaned up", "x" * 10)

    def option(*args, **kwargs):
        procs.logging_option(*args, **kwargs).get(timeout=300)
"""
FORWARDING = """
    configure(enable_log_forwarding=True)
    procs = this_host().spawn_procs({"gpus": 3}, name="workers")
    talkers = procs.spawn("talker", Talker)
    one = talkers.slice(gpus=1)
    talkers.pids.call().get(timeout=300)
"""


def program(body: str, start: str = FORWARDING) -> str:
    return "".join(map(textwrap.dedent, (ACTOR, start, body)))


def streamed(text: str) -> list[tuple[str, str, str]]:
    """(mesh, rank, line) of each streamed line."""
    return sorted(re.findall(r"^\[\S+ (\S+)\] \[(\d+)\] (.*)$", text, flags=re.MULTILINE))


def folded(text: str) -> list[tuple[str, str, str]]:
    """(how many, ranks, line) of each group of the folded blocks."""
    plain = re.sub(r"\x1b\[\d+m", "", text)
    return sorted(re.findall(r"^\[(\d+) similar log lines\] \[([\d,-]+)\] (.*)$", plain, flags=re.MULTILINE))


def test_a_streamed_line_is_shown_once_and_on_its_stream(scripts: Any) -> None:
    done = scripts.run(
        program(
            """
            option(stream_to_client=True)
            talkers.say_rank.call().get(timeout=300)
            one.say.call("aside", err=True).get(timeout=300)
            option(stream_to_client=False)
            procs.stop().get(timeout=300)
            """
        )
    )
    assert streamed(done.stdout) == [("workers", str(n), f"rank {n}") for n in range(3)]
    assert streamed(done.stderr) == [("workers", "1", "aside")]
    # Streaming was off again when __cleanup__ ran.
    assert done.stdout.count("rank ") == 3 and done.stdout.splitlines().count("cleaned up xxxxxxxxxx") == 3


@full
def test_only_lines_equal_across_ranks_are_folded_each_stream_for_itself(scripts: Any) -> None:
    done = scripts.run(
        program(
            """
            option(stream_to_client=True, aggregate_window_sec=600)
            talkers.say.call("all say this", "twice", "twice").get(timeout=300)
            talkers.say_rank.call().get(timeout=300)
            talkers.say.call("all say this", err=True).get(timeout=300)
            option(stream_to_client=True, aggregate_window_sec=None)
            one.say.call("streamed now").get(timeout=300)
            option()
            procs.stop().get(timeout=300)
            """
        )
    )
    assert folded(done.stdout) == [
        ("1", "0", "rank 0"),
        ("1", "1", "rank 1"),
        ("1", "2", "rank 2"),
        ("3", "0-2", "all say this"),
        ("3", "0-2", "twice"),
        ("3", "0-2", "twice"),
    ]
    assert folded(done.stderr) == [("3", "0-2", "all say this")]
    assert streamed(done.stdout) == [("workers", "1", "streamed now")]


@full
def test_ending_the_window_shows_what_is_pending(scripts: Any) -> None:
    process = scripts.start(
        program(
            """
            option(stream_to_client=True, aggregate_window_sec=600)
            talkers.say.call("pending").get(timeout=300)
            option(stream_to_client=True, aggregate_window_sec=None)
            sys.stdin.readline()
            """
        )
    )
    seen = ""
    while "<<< Aggregated Logs" not in seen:  # shown while the program still runs
        line = process.stdout.readline()
        assert line, seen
        seen += line
    assert folded(seen) == [("3", "0-2", "pending")]
    process.communicate("go on\n", timeout=TIMEOUT)
    assert process.returncode == 0


@full
def test_a_window_is_shown_when_it_ends_and_the_next_begins(scripts: Any) -> None:
    process = scripts.start(
        program(
            """
            option(stream_to_client=True, aggregate_window_sec=0.05)
            for line in sys.stdin:
                talkers.say.call(line.strip()).get(timeout=300)
            """
        )
    )
    for word in ("first", "second"):
        process.stdin.write(word + "\n")
        process.stdin.flush()
        seen: list[tuple[str, str, str]] = []
        while sum(int(count) for count, _, _ in seen) < 3:
            line = process.stdout.readline()
            assert line, "the program ended"
            seen += folded(line)
        assert {line for _, _, line in seen} == {word}
    process.communicate("", timeout=TIMEOUT)
    assert process.returncode == 0


@pytest.mark.parametrize("end", first_of(["procs.stop().get(timeout=300)", "pass", "sys.exit(0)"]))
def test_stop_and_exit_show_what_a_window_holds(scripts: Any, end: str) -> None:
    done = scripts.run(
        program(
            f"""
            option(stream_to_client=True, aggregate_window_sec=600)
            talkers.say.call("held").get(timeout=300)
            {end}
            """
        )
    )
    assert ("3", "0-2", "held") in folded(done.stdout)


@full
def test_a_line_without_an_end_is_shown_when_the_process_ends(scripts: Any) -> None:
    done = scripts.run(
        program(
            """
            option(stream_to_client=True)
            talkers.stop().get(timeout=300)

            class Writer(Actor):
                @endpoint
                def write(self, data): os.write(1, data)

            procs.spawn("writer", Writer).slice(gpus=1).write.call(b"no newline").get(timeout=300)
            procs.stop().get(timeout=300)
            """
        )
    )
    assert ("workers", "1", "no newline") in streamed(done.stdout)


@full
def test_what_processes_say_last_is_not_lost_when_the_program_just_ends(scripts: Any) -> None:
    done = scripts.run(
        program(
            """
            one.say.call(*[f"line {n}" for n in range(20_000)]).get(timeout=300)
            """
        )
    )
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("line")] == [f"line {n}" for n in range(20_000)]
    assert lines.count("cleaned up xxxxxxxxxx") == 3


@full
def test_characters_stay_whole_where_reads_cut_them(scripts: Any) -> None:
    done = scripts.run(
        program(
            """
            one.write.call("\\u00e4\\u20ac".encode() * 100_000 + b"\\n").get(timeout=300)
            """
        )
    )
    assert "\u00e4\u20ac" * 100_000 + "\n" in done.stdout


@full
def test_streaming_that_was_not_prepared_warns_and_changes_nothing(scripts: Any) -> None:
    done = scripts.run(
        program(
            """
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                option(stream_to_client=True, aggregate_window_sec=600)
            assert [w.category for w in caught] == [UserWarning], caught
            assert "no effect" in str(caught[0].message)
            one.say.call("as it is").get(timeout=300)
            """,
            FORWARDING.replace("True", "False"),
        )
    )
    assert "as it is" in done.stdout.splitlines()


# --- without forwarding


def test_on_a_terminal_what_an_actor_prints_stands_before_what_the_client_prints_next(scripts: Any) -> None:
    terminal, side = pty.openpty()
    process = scripts.start(
        program(
            """
            for n in range(50):
                one.say.call(f"actor {n}").get(timeout=300)
                print(f"client {n}")
            os._exit(0)
            """,
            FORWARDING.replace("True", "False"),
        ),
        stdin=side,
        stdout=side,
        env={"PYTHONUNBUFFERED": ""},
    )
    os.close(side)
    seen = b""
    while b"client 49" not in seen:
        assert select.select([terminal], [], [], TIMEOUT)[0], seen
        seen += os.read(terminal, 65536)
    os.close(terminal)
    assert process.wait(TIMEOUT) == 0
    before, _, _ = seen.decode().partition("client 49")  # what is printed afterwards is of actors that end
    assert f"{before}client 49".split() == " ".join(f"actor {n} client {n}" for n in range(50)).split()


@full
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_lines_of_several_processes_do_not_mix(scripts: Any, unbuffered: str) -> None:
    done = scripts.run(
        program(
            """
            talkers.say.call(*["a line"] * 500).get(timeout=300)
            talkers.say.call(*["a line"] * 500, err=True).get(timeout=300)
            procs.stop().get(timeout=300)
            """,
            FORWARDING.replace("True", "False"),
        ),
        env={"PYTHONUNBUFFERED": unbuffered},
    )
    assert done.stdout.splitlines().count("a line") == 1500
    assert done.stderr.splitlines() == ["a line"] * 1500


@full
@pytest.mark.parametrize("streaming", [True, False])
def test_output_that_nobody_reads_costs_the_client_little_and_is_told(scripts: Any, streaming: bool) -> None:
    running = scripts.start(
        program(
            f"""
    import threading
    class Flood(Actor):
        @endpoint
        def write(self, megabytes):
            for _ in range(megabytes):
                os.write(1, (b"y" * 999 + b"\\n") * 1000)
    if {streaming}:
        option(stream_to_client=True)
    floods = procs.spawn("flood", Flood)
    floods.write.call(1).get(timeout=300)  # its end is not read any more
    floods.write.call(80).get(timeout=300)
    resident = int(open("/proc/self/statm").read().split()[1]) * 4096
    print("resident", resident >> 20, file=sys.stderr, flush=True)
    """
        )
    )
    assert running.stderr is not None and running.stdout is not None
    said = running.stderr.readline().split()
    assert said[0] == "resident" and int(said[1]) < 250, said
    _, err = running.communicate(timeout=TIMEOUT)
    assert re.search(
        r"\.\.\. \d+ MB of output from rank \d of mesh workers.* not shown: the terminal does not read", err
    )
    assert running.returncode == 0
