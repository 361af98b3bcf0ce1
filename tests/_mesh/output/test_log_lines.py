"""Lines, folding and echoing of output, without processes."""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._mesh.output import capture
from monarch._mesh.output.log_lines import LINE_LIMIT, Aggregator, Echo, Lines, origin
from monarch._text import NAME_LIMIT
from monarch._wire.address import UNNAMED

# --- Lines


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in pieces, cut at `places`."""
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(st.lists(st.text(st.characters(exclude_characters="\n"), max_size=20)), st.lists(st.integers(0, 500)))
def test_lines_come_out_whole_however_they_are_cut(texts: list[str], places: list[int]) -> None:
    lines = Lines()
    data = "".join(text + "\n" for text in texts).encode("utf-8", "replace")
    found = [line for piece in cut(data, places) for line in lines.feed(piece)]
    assert found == data.decode().split("\n")[:-1]
    assert lines.flush() == []


def test_what_ends_without_a_newline_comes_at_the_end() -> None:
    lines = Lines()
    assert lines.feed(b"one\ntw") == ["one"]
    assert lines.feed(b"o") == []
    assert lines.flush() == ["two"]
    assert lines.flush() == []


@given(st.integers(1, 3 * LINE_LIMIT), st.lists(st.integers(0, 4 * LINE_LIMIT), max_size=4))
def test_a_long_line_is_cut_and_says_how_much_is_missing(over: int, places: list[int]) -> None:
    lines = Lines()
    data = b"x" * (LINE_LIMIT + over) + b"\nnext\n"
    found = [line for piece in cut(data, places) for line in lines.feed(piece)]
    assert found == ["x" * LINE_LIMIT + f" [{over} bytes more]", "next"]


def test_a_line_at_the_limit_is_whole() -> None:
    assert Lines().feed(b"x" * LINE_LIMIT + b"\n") == ["x" * LINE_LIMIT]


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert Lines().feed(b"a\xffb\n") == ["a\ufffdb"]


def test_memory_for_an_endless_line_is_bounded() -> None:
    lines = Lines()
    for _ in range(100):
        lines.feed(b"x" * 65536)
    assert len(lines._rest) == LINE_LIMIT
    (line,) = lines.feed(b"\n")
    assert line.endswith(f" [{100 * 65536 - LINE_LIMIT} bytes more]")


# --- streamed lines


def test_a_streamed_line_says_host_mesh_and_rank_once() -> None:
    assert origin("host", "trainers", 3, True) == "[host trainers] [3] "
    assert origin("host", "trainers", 3, False) == "[host trainers-3] "
    assert origin("host", "trainers") == "[host trainers] "
    assert origin("host", UNNAMED, 3, True) == "[host procs] [3] "
    assert origin("host", UNNAMED, 3, False) == "[host procs-3] "


def test_hosts_of_a_job_on_one_machine_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node1")
    monkeypatch.delenv("HYPERACTOR_PROCESS_NAME", raising=False)
    assert capture._host() == "node1"
    monkeypatch.setenv("HYPERACTOR_PROCESS_NAME", "trainers_1")
    assert capture._host() == "node1/trainers_1"
    monkeypatch.setenv("HYPERACTOR_PROCESS_NAME", "caf\udce9" + "x" * 5_000)
    assert capture._host().isascii() and len(capture._host()) <= len("node1/") + NAME_LIMIT


# --- folding


def groups(block: str) -> list[tuple[int, str, str]]:
    """(how many, ranks, line) of each group of a block; checks its frame."""
    plain = re.sub(r"\x1b\[\d+m", "", block)
    first, *middle, last, blank, end = plain.split("\n")
    assert (first, last, blank, end) == (">>> Aggregated Logs (now) >>>", "<<< Aggregated Logs (now) <<<", "", "")
    found = [re.fullmatch(r"\[(\d+) similar log lines\] (?:\[([\d,-]+)\] )?(.*)", line) for line in middle]
    return [(int(match[1]), match[2] or "", match[3]) for match in found if match]


def test_equal_lines_of_several_ranks_are_one_group() -> None:
    folding = Aggregator(3.0)
    for rank in (4, 0, 1, 2, 7):
        folding.add(rank, "same", 0.0)
    folding.add(1, "other", 0.0)
    assert groups(folding.take("now")) == [(5, "0-2,4,7", "same"), (1, "1", "other")]


def test_a_line_that_one_rank_repeats_stays_as_many_lines() -> None:
    folding = Aggregator(3.0)
    for _ in range(3):
        folding.add(0, "again", 0.0)
    folding.add(1, "again", 0.0)
    assert groups(folding.take("now")) == [(2, "0-1", "again"), (1, "0", "again"), (1, "0", "again")]


@pytest.mark.parametrize(("one", "other"), [("loss 0.51", "loss 0.52"), ("done", "done "), ("a", "A")])
def test_lines_that_differ_at_all_are_apart(one: str, other: str) -> None:
    folding = Aggregator(3.0)
    folding.add(0, one, 0.0)
    folding.add(1, other, 0.0)
    assert [count for count, _, _ in groups(folding.take("now"))] == [1, 1]


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["a", "b", "c"]))))
def test_folding_loses_and_invents_nothing(said: list[tuple[int, str]]) -> None:
    folding = Aggregator(3.0)
    for rank, line in said:
        folding.add(rank, line, 0.0)
    block = folding.take("now")
    shown = groups(block) if block else []
    total: Counter[str] = Counter()
    for count, _, line in shown:
        total[line] += count
    assert total == Counter(line for _, line in said)
    for rank in range(6):  # the order of each rank is kept
        own = [line for _, ranks, line in shown if rank in members(ranks)]
        assert own == [line for other, line in said if other == rank]


def members(ranks: str) -> set[int]:
    """`0-2,4` as numbers."""
    found: set[int] = set()
    for run in ranks.split(","):
        first, _, last = run.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def test_lines_are_apart_where_folding_them_would_change_the_order_of_a_rank() -> None:
    folding = Aggregator(3.0)
    for rank, line in [(0, "begin"), (0, "end"), (1, "end"), (1, "begin")]:
        folding.add(rank, line, 0.0)
    assert groups(folding.take("now")) == [(1, "0", "begin"), (2, "0-1", "end"), (1, "1", "begin")]


def test_a_window_ends_early_when_its_text_is_large() -> None:
    folding = Aggregator(3.0)
    for number in range(Aggregator.SIZE // 1000):
        assert folding.due(1.0) in (None, 3.0)
        folding.add(0, f"{number:01000}", 0.0)
    folding.add(0, "the last", 0.0)
    folding.add(0, "x" * 1000, 0.0)
    assert folding.due(1.0) == 1.0


def test_the_prefix_of_ranks_can_be_left_out() -> None:
    folding = Aggregator(3.0)
    folding.add(5, "text", 0.0)
    assert groups(folding.take("now", with_rank=False)) == [(1, "", "text")]


def test_a_window_begins_with_its_first_line() -> None:
    folding = Aggregator(3.0)
    assert folding.due(100.0) is None and folding.take("now") == ""
    folding.add(0, "a", 10.0)
    folding.add(0, "b", 12.0)
    assert folding.due(12.0) == 13.0
    assert folding.take("now") != ""
    assert folding.due(13.0) is None and folding.take("now") == ""
    folding.add(0, "c", 20.0)
    assert folding.due(20.0) == 23.0


def test_a_window_ends_early_when_it_is_full() -> None:
    folding = Aggregator(3.0)
    for number in range(Aggregator.LIMIT):
        assert folding.due(1.0) in (None, 3.0)
        folding.add(0, str(number), 0.0)
    assert folding.due(1.0) == 1.0


# --- echoing


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    yield read, write
    for fd in (read, write):
        try:
            os.close(fd)
        except OSError:
            pass


def drain(read: int) -> bytes:
    found = b""
    while True:
        try:
            data = os.read(read, 1 << 20)
        except BlockingIOError:
            return found
        if not data:
            return found
        found += data


def test_echo_writes_at_once_while_there_is_room(pipe: tuple[int, int]) -> None:
    read, write = pipe
    echo = Echo(write)
    echo.write(b"hello\n")
    assert drain(read) == b"hello\n" and not echo.pending


def test_echo_never_waits_for_a_reader_and_loses_nothing(pipe: tuple[int, int]) -> None:
    read, write = pipe
    echo = Echo(write)
    data = os.urandom(Echo.LIMIT + 100_000)
    echo.write(data)
    assert echo.pending and echo.full
    found = b""
    while echo.pending:
        found += drain(read)
        echo.flush()
    assert found + drain(read) == data and not echo.full


def test_echo_forgets_when_nobody_reads_any_more(pipe: tuple[int, int]) -> None:
    read, write = pipe
    echo = Echo(write)
    os.close(read)
    echo.write(b"into the void")
    assert not echo.pending and not echo.full
