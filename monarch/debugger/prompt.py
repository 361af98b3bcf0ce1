"""The terminal of `monarch debug`: a line editor with history and completion in front of the debugger's conversation.

A thread reads what comes; everything is printed by the main thread. A line is asked for when the other side shows a prompt.
News while a line is being typed interrupt the editor by a signal, are printed, and the line is there again.

Ctrl-C throws the line away; while a rank runs it detaches. Ctrl-D detaches, or leaves.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from monarch._linux import private_files
from monarch._linux.locks import Condition
from monarch._linux.terminal import erase_line, note, show
from monarch.debugger.conversation import PROMPT

PDB_PROMPTS = ("(Pdb) ", "((Pdb)) ", "(com) ", ">>> ", "... ")
_COMMANDS = ("help", "list", "attach", "cast", "continue", "quit")
_PDB_COMMANDS = [
    "args",
    "break",
    "cl",
    "clear",
    "commands",
    "condition",
    "continue",
    "detach",
    "disable",
    "display",
    "down",
    "enable",
    "exit",
    "help",
    "ignore",
    "interact",
    "jump",
    "list",
    "longlist",
    "next",
    "p",
    "pp",
    "print",
    "quit",
    "return",
    "source",
    "step",
    "tbreak",
    "until",
    "undisplay",
    "up",
    "whatis",
    "where",
]
_HISTORY = 1_000  # lines kept from one run to the next
_READ = 1 << 16
_LOOK = 0.5  # seconds between two looks whether the other side is still there
_ANSWERS_WITHIN = 60.0  # seconds, where nobody types
_LONGEST = 16 << 20  # bytes of such an answer
_HINT = 2.0  # seconds without a prompt after which it is said how to get one

Names = Callable[[], Sequence[tuple[str, int]]]


def split_prompt(text: str) -> tuple[str, str]:
    """Returns what was shown, and the prompt at its end, "" when none is there."""
    line = text[text.rfind("\n") + 1 :]
    for prompt in (PROMPT, *PDB_PROMPTS):
        if line.endswith(prompt) and (prompt in (PROMPT, "(Pdb) ") or line == prompt):
            return text[: len(text) - len(prompt)], prompt
    return text, ""


def completions(line: str, attached: bool, names: Sequence[tuple[str, int]]) -> list[str]:
    """Words that may stand where the last word of `line` is begun."""
    words = line.split(" ")
    before, begun = [word for word in words[:-1] if word], words[-1]
    if not before:
        found = list(_PDB_COMMANDS if attached else _COMMANDS)
    elif attached or before[0] not in ("attach", "a", "cast"):
        found = []
    elif len(before) == 1:
        found = sorted({name for name, _ in names})
    elif len(before) == 2 and before[0] != "cast":
        found = [str(rank) for name, rank in names if name == before[1]]
    elif len(before) == 2:
        found = ["ranks("]
    else:
        found = []
    return [word for word in found if word.startswith(begun)]


class _News(Exception):
    """Something has come while a line is being typed."""


class Prompt:
    """`names`: the actors and ranks that stand at breakpoints, for completion. `end`: what the other side's end means."""

    def __init__(self, sock: socket.socket, names: Names = list, end: str = "the connection has ended") -> None:
        self._sock = sock
        self._names = names
        self._end = end
        self._changed = Condition()
        self._text = ""  # came, not yet printed
        self._gone = False
        self._attached = False
        self._typing = False
        self._draft = ""
        self._typed = b""  # of a pipe or file
        self._known_names: Sequence[tuple[str, int]] = ()
        self._on_terminal = sys.stdin.isatty() and sys.stdout.isatty()

    def run(self, first: str = "") -> int:
        """Until somebody leaves. `first`: a command that is given at once. The exit status."""
        threading.Thread(target=self._read, name="monarch-debug", daemon=True).start()
        with self._line_editor():
            while (prompt := self._next_prompt()) is not None:
                self._attached = prompt != PROMPT
                if first:
                    line, first = first, ""
                    show(f"{prompt}{line}")
                else:
                    asked = self._ask(prompt)
                    if asked is None:
                        continue
                    line = asked
                try:
                    self._sock.sendall(f"{line}\n".encode())
                except OSError:
                    break
                if line.strip() in ("quit", "q") and not self._attached:
                    self._drain()
                    return 0
        note(f"monarch debug: {self._end}")
        return 1

    # --- what comes

    def _read(self) -> None:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        while True:
            try:
                # The editor looks for signals only while it waits for a key: one that comes as it draws, this one or a
                # Ctrl-C, is seen with the next.
                while not select.select([self._sock], [], [], _LOOK if self._on_terminal else None)[0]:
                    if self._typing:
                        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                data = self._sock.recv(_READ)
            except OSError:
                data = b""
            with self._changed:
                self._text += decode(data)
                self._gone = not data
                self._changed.notify_all()
                if self._typing:
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            if not data:
                return

    def _next_prompt(self) -> str | None:
        """Prints what comes until there is a prompt; None when there will be none."""
        hinted = False
        while True:
            try:
                with self._changed:
                    shown, prompt = split_prompt(self._text)
                    if not shown and not prompt and not self._gone:
                        came = self._changed.wait(None if hinted else _HINT)
                        if came or not self._attached:
                            continue
                    self._text = ""
                    gone = self._gone
                if shown:
                    show(shown, end="")
                if gone:
                    return None
                if prompt:
                    return prompt
                if not shown and not hinted and self._on_terminal:
                    hinted = True
                    show("(it runs; Ctrl-C detaches)")
            except KeyboardInterrupt:
                show()
                with contextlib.suppress(OSError):
                    self._sock.sendall(b"detach\n" if self._attached else b"\n")

    def _drain(self) -> None:
        """Shows what still comes at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._gone, 5.0)
            show(self._text, end="")

    # --- what is typed

    def _ask(self, prompt: str) -> str | None:
        """A line; None when there is news first, or none was typed: the prompt is to be shown again."""
        try:
            if not self._on_terminal:
                return self._from_file(prompt)
            try:
                with self._changed:
                    self._typing = True
                    news = bool(self._text) or self._gone
                line = None if news else input(prompt)
            finally:
                self._typing = False
            if line is None:
                raise _News
            self._draft = ""
            return line
        except _News:
            import readline

            self._draft = readline.get_line_buffer()
            erase_line()
            with self._changed:
                if not split_prompt(self._text)[1]:  # the same prompt again, behind the news
                    self._text += ("" if not self._text or self._text.endswith("\n") else "\n") + prompt
        except EOFError:
            show()
            return "detach" if self._attached else "quit"
        except KeyboardInterrupt:
            show()
            self._draft = ""
            with self._changed:
                self._text += prompt
        return None

    def _from_file(self, prompt: str) -> str | None:
        """A line of a pipe or file; None when the connection has ended first."""
        show(prompt, end="")
        while b"\n" not in self._typed:
            if not select.select([0], [], [], _LOOK)[0]:
                if self._gone:
                    return None
                continue
            data = os.read(0, _READ)
            if not data:
                if not self._typed:
                    raise EOFError
                data = b"\n"
            self._typed += data
        line, _, self._typed = self._typed.partition(b"\n")
        show(line.decode(errors="replace"))  # what is shown reads as a terminal would show it
        return line.decode(errors="replace")

    @contextlib.contextmanager
    def _line_editor(self) -> Iterator[None]:
        if not self._on_terminal:
            yield
            return
        import readline

        def on_news(number: int, frame: FrameType | None) -> None:
            while frame is not None:
                if frame.f_code in hooks:
                    return  # the editor drops what is raised there; the next signal comes soon
                frame = frame.f_back
            if self._typing and (self._text or self._gone):
                self._typing = False  # one is enough: a second signal would raise amid the first exception
                raise _News

        def complete(text: str, state: int) -> str | None:
            if state == 0:
                with contextlib.suppress(Exception):
                    self._known_names = [(name, rank) for name, rank in self._names() if name.isprintable()]
            line = readline.get_line_buffer()[: readline.get_endidx()]
            found = completions(line, self._attached, self._known_names)
            return found[state] + (" " if len(found) == 1 else "") if state < len(found) else None

        def put_draft_back() -> None:
            if self._draft:
                readline.insert_text(self._draft)
                readline.redisplay()
                self._draft = ""

        hooks = {complete.__code__, put_draft_back.__code__}
        before = signal.signal(signal.SIGUSR1, on_news)
        file = _history_file()
        with contextlib.suppress(OSError):
            readline.read_history_file(file)
        readline.set_history_length(_HISTORY)
        readline.set_completer(complete)
        readline.set_completer_delims(" ")
        readline.parse_and_bind("tab: complete")
        readline.set_pre_input_hook(put_draft_back)
        try:
            yield
        finally:
            readline.set_pre_input_hook(None)
            signal.signal(signal.SIGUSR1, before)
            with contextlib.suppress(OSError):
                private_files.make_folder(file.parent)
                os.close(private_files.open_lock(file))
                readline.write_history_file(file)


def _history_file() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "monarch/debug_history"


def exchange(sock: socket.socket, command: str) -> str:
    """Returns what one command says, where nobody types."""
    _until_prompt(sock)
    sock.sendall(f"{command}\n".encode())
    said = _until_prompt(sock)
    sock.sendall(b"quit\n")
    return said


def _until_prompt(sock: socket.socket) -> str:
    said = b""
    sock.settimeout(_ANSWERS_WITHIN)
    while not said.endswith(PROMPT.encode()):
        if len(said) > _LONGEST:
            raise ConnectionError(f"what came has no prompt of a debugger within {_LONGEST:,} bytes: is it one?")
        try:
            data = sock.recv(_READ)
        except TimeoutError:
            raise TimeoutError(f"no prompt of a debugger came within {_ANSWERS_WITHIN:g} s: is it one?") from None
        if not data:
            raise ConnectionError(said.decode(errors="replace").strip() or "the debugger closed the connection")
        said += data
    return said[: -len(PROMPT)].decode(errors="replace")
