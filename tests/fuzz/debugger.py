"""The debugger of a program: its port for plain clients, the stream of its own user's `monarch debug`, and the port for an
editor. A rank calls `breakpoint()` again and again meanwhile.

Orders of every kind come in any order and in pieces, clients attach, vanish and take each other's place. What must be so: the
rank goes on when nobody is attached any more, and neither the program nor the rank holds more than before.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time

import msgspec

from monarch.admin.debugging import STREAM, Visit
from monarch.admin.programs import Program, program_at
from monarch.debugger import visit
from tests.fuzz.http import spoilt
from tests.fuzz.targets import DESCRIPTORS, THREADS, FuzzedProgram, Held, Target, held
from tests.support.hostile import NAME

PATIENCE = 60.0
MESH = "workers"
LINES = (
    "list", "help", "continue", "quit", "detach", "c", "n", "w", "p self", f"p {NAME!r}", "interact", "exit()", "",
    f"attach {MESH} 0", f"attach {MESH} 0", f"attach {MESH} 0", f"attach {MESH} 7", f"cast {MESH} ranks(:) n",
    f"cast {MESH} ranks(0:9:3) p 1", "cast x ranks((((", "POST / HTTP/1.1", NAME, "x" * 70_000,
)  # fmt: skip
VISITS = (visit.TALK, visit.TALK, visit.LIST, visit.NAMES, visit.CONTINUE, visit.CHECK, "nothing", NAME)


def target(program: FuzzedProgram) -> Target:
    """Returns the client of the program, at all doors of its debugger."""
    found = program_at(program.folder)
    assert found is not None
    port = _logged(program, r"nc localhost (\d+)")
    rank = int(asked(found, Visit(visit.CHECK, mesh=MESH))["pid"])
    editors = editor_port(found, program.folder)
    before: list[Held] = []

    def attack(rng: random.Random) -> None:
        doors = (
            lambda: socket.create_connection(("127.0.0.1", port), PATIENCE),
            lambda: socket.create_connection(("127.0.0.1", editors), PATIENCE),
            lambda: found.stream(STREAM, msgspec.msgpack.encode(_any_visit(rng))),
        )
        with contextlib.ExitStack() as stack:
            for _ in range(rng.choice((1, 1, 2, 20))):
                try:
                    one = stack.enter_context(rng.choice(doors)())
                except (OSError, ValueError):  # as many as the door takes are open
                    continue
                converse(rng, one)

    def serves() -> None:
        assert "Actor Name" in asked(found, Visit(visit.LIST))["text"]
        now = settled_rank(rank, before[0] if before else None)
        before.append(now)
        stands_again(found)

    return Target(program.pid, program.log, attack, serves)


def converse(rng: random.Random, one: socket.socket) -> None:
    """Says something there in one of several ways, and leaves without a word, or abruptly."""
    one.settimeout(rng.choice((0.001, 0.02)))
    for _ in range(rng.randrange(8)):
        said = message(rng)
        try:
            one.sendall(said if rng.random() < 0.8 else said[: rng.randrange(len(said) + 1)])
            if rng.random() < 0.7:
                one.recv(1 << 16)
        except OSError:
            break
    way = rng.randrange(4)
    with contextlib.suppress(OSError):
        if way == 0:
            one.shutdown(socket.SHUT_WR)
        elif way == 1 and one.family == socket.AF_INET:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def message(rng: random.Random) -> bytes:
    way = rng.randrange(10)
    if way < 5:
        return "".join(f"{rng.choice(LINES)}\n" for _ in range(rng.choice((1, 1, 3, 30)))).encode()
    if way < 8:
        command = rng.choice(("initialize", "initialize", "attach", "disconnect", "threads", "evaluate", NAME))
        body = json.dumps({"seq": 1, "type": "request", "command": command, "arguments": {}}).encode()
        request = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        return request if way < 7 else spoilt(rng, request)
    return rng.randbytes(rng.randrange(300))


def _any_visit(rng: random.Random) -> Visit:
    return Visit(rng.choice(VISITS), rng.choice((None, MESH, NAME)), rng.choice((0, 0, 1, -1)))


def asked(program: Program, wanted: Visit) -> dict[str, str]:
    """Returns what the program answers to a short question of its owner."""
    with program.stream(STREAM, msgspec.msgpack.encode(wanted)) as sock:
        sock.settimeout(PATIENCE)
        answer: dict[str, str] = json.loads(sock.makefile("rb").readline())
        assert "error" not in answer, answer
        return answer


def stands_again(program: Program) -> None:
    """The rank comes to its breakpoint, for it is called again and again; and its owner gets in, and lets it go on."""
    deadline = time.monotonic() + PATIENCE
    while not asked(program, Visit(visit.NAMES))["names"]:
        assert time.monotonic() < deadline, "the rank does not come to its breakpoint any more"
        threading.Event().wait(0.05)
    asked(program, Visit(visit.CONTINUE))


def settled_rank(pid: int, before: Held | None) -> Held:
    """Returns what the rank holds, as soon as that is not much more than before."""
    deadline = time.monotonic() + PATIENCE
    while True:
        now = held(pid)
        if before is None or (
            now.descriptors <= before.descriptors + DESCRIPTORS and now.threads <= before.threads + THREADS
        ):
            return now
        assert time.monotonic() < deadline, f"the rank held {before}, and holds {now}"
        threading.Event().wait(0.5)


def editor_port(program: Program, folder: str) -> int:
    """The port of a `monarch debug --dap`, which ends with this process."""
    words = ["debug", "--pid", str(program.pid), "--dap", "0", "--mesh", MESH, "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "monarch", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "MONARCH_RUNTIME_DIR": os.path.dirname(os.path.dirname(folder))},
    )  # fmt: skip
    atexit.register(process.kill)
    assert process.stdout is not None
    found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
    assert found is not None, "there is no port for an editor"
    return int(found[1])


def _logged(program: FuzzedProgram, pattern: str) -> int:
    deadline = time.monotonic() + PATIENCE
    while (found := re.search(pattern, program.log.read_text(errors="replace"))) is None:
        assert time.monotonic() < deadline, "the debugger does not say where it listens"
        threading.Event().wait(0.05)
    return int(found[1])
