"""Output that nobody takes: memory stays bounded, and it is said how much was left out, and whose."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from monarch._mesh.output.capture import MeshOutput, Outputs, ProcOutput
from monarch._mesh.output.left_out import SOURCES, LeftOut, shown_size
from monarch._mesh.output.printer import KEPT, Printer
from monarch._runtime.loop import Loop
from monarch._wire.message import Output
from tests.support.patience import TIMEOUT


def test_a_note_says_how_much_of_whose_output_is_missing() -> None:
    left_out = LeftOut("the terminal does not read")
    assert not left_out and left_out.take() == ""
    left_out.add("rank 3 of mesh trainers", 11_600_000)
    assert left_out.take() == "... 12 MB of output from rank 3 of mesh trainers not shown: the terminal does not read\n"
    assert not left_out
    for rank in range(6):
        left_out.add(f"rank {rank}", 1000 * (6 - rank))
    assert left_out.take().startswith("... 21 kB of output from rank 0, rank 1, rank 2, rank 3 and 2 more not shown")


def test_sources_are_bounded() -> None:
    left_out = LeftOut("")
    for rank in range(10 * SOURCES):
        left_out.add(f"rank {rank}", 1)
    assert len(left_out._sizes) == SOURCES + 1 and "10 kB" in left_out.take()


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (12_345_678, "12 MB"), (5_000_000_000, "5 GB")],
)
def test_sizes(size: int, text: str) -> None:
    assert shown_size(size) == text


class Terminal:
    """A Printer whose output is read when `reads` is set."""

    def __init__(self) -> None:
        self.proc: Any = SimpleNamespace(receivers={}, address="unix:/x/client")
        self.printer = Printer(self.proc)
        self.printer.show = self.show
        self.reads, self.waits = threading.Event(), threading.Event()
        self.shown: list[tuple[int, str]] = []

    def show(self, number: int, text: str) -> None:
        self.waits.set()
        assert self.reads.wait(TIMEOUT)
        self.shown.append((number, text))

    def write(self, text: str, source: str) -> None:
        self.proc.receivers[Output](None, Output(1, text, source), None)


def test_a_terminal_that_does_not_read_costs_bounded_memory_and_is_told_what_it_missed() -> None:
    terminal = Terminal()
    terminal.write("first\n", "rank 0")
    assert terminal.waits.wait(TIMEOUT)
    piece = "x" * 2**20
    for _ in range(50):
        terminal.write(piece, "rank 3 of mesh trainers")
    assert sum(len(output.text) for _agent, output in terminal.printer._output) == terminal.printer._size <= KEPT
    terminal.write("last\n", "rank 0")
    terminal.reads.set()
    terminal.printer.wait_printed(TIMEOUT)
    texts = [text for _, text in terminal.shown]
    assert texts[0] == "first\n" and texts[-1] == "last\n" and texts.count(piece) == 15
    missing = shown_size(35 * 2**20)
    assert terminal.shown[1] == (
        2, f"... {missing} of output from rank 3 of mesh trainers not shown: the terminal does not read\n"
    )  # fmt: skip


def test_a_client_that_takes_nothing_costs_its_host_nothing_and_is_told_later() -> None:
    loop, room, sent = Loop("test-io"), False, []
    noted = threading.Event()

    def send(client: str, output: Output) -> None:
        sent.append((client, output.stream, output.text))
        noted.set()

    outputs = Outputs(loop, send, lambda client: room)
    output = ProcOutput(MeshOutput("noisy", True, True, "unix:/x/client"), 7)
    writing = outputs.open(output)
    loop.start()
    for _ in range(100):
        os.write(writing["stdout"], b"x" * 1000)  # blocks unless it is read
    turned = threading.Event()
    loop.call_soon(turned.set)
    assert turned.wait(TIMEOUT)
    assert sent == []
    room = True
    assert noted.wait(TIMEOUT)
    assert sent == [
        ("unix:/x/client", 2, "... 100 kB of output from rank 7 of mesh noisy not shown: the program does not read\n")
    ]
    loop.call_soon(lambda: outputs.close(output))
    loop.stop()
    assert loop.join(TIMEOUT)
    for fd in writing.values():
        os.close(fd)


# --- a process that ended, and programs that write on


def test_what_stands_in_a_pipe_at_the_end_is_taken_and_no_more() -> None:
    loop = Loop("test-io")
    outputs = Outputs(loop, lambda client, output: None)
    output = ProcOutput(MeshOutput("noisy", False, True), 0)
    writing = outputs.open(output)["stderr"]
    os.write(writing, b"last words\n")
    stop, wrote = threading.Event(), threading.Event()

    def write_on() -> None:
        os.set_blocking(writing, False)
        while not stop.is_set():
            try:
                os.write(writing, b"y\n" * 1000)
            except BlockingIOError:
                wrote.set()
            except BrokenPipeError:
                return

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        assert wrote.wait(TIMEOUT)
        closer = threading.Thread(target=outputs.close, args=[output], daemon=True)
        closer.start()
        closer.join(TIMEOUT)
        assert not closer.is_alive()
        assert output.tail.shown(False)[-1].startswith("y")
        writer.join(TIMEOUT)
        assert not writer.is_alive(), "its pipe is not closed"
    finally:
        stop.set()
        writer.join(TIMEOUT)
        os.close(writing)
        loop.stop()
        loop.run()
