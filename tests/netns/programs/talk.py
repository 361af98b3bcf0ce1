"""talk.py HOST PORT: a client of echo.py, told by lines on stdin what to do; each is answered with a line.

send TEXT   writes a line to the connection -> "sent"
hear        reads one from it               -> the text, "end", or the name of the error
stuck       waits until the kernel sends something again because nobody acknowledged it -> "stuck"
ask TEXT    send and hear                   -> as hear
from        -> the address the other side sees
"""

from __future__ import annotations

import select
import socket
import sys
import time

SECONDS = 30.0


def tries_again(connection: socket.socket) -> bool:
    # struct tcp_info (linux/tcp.h) begins with state, ca_state, retransmits, probes, backoff, an octet each. What the own
    # interface did not take counts as never sent: it is probed for rather than retransmitted.
    return any(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[2:5])


def stuck(connection: socket.socket) -> str:
    deadline = time.monotonic() + SECONDS
    while not tries_again(connection):
        if time.monotonic() > deadline:
            return f"acknowledged, or never tried again within {SECONDS} s"
        select.select([], [], [], 0.005)  # the kernel has no event for it
    return "stuck"


def hear(connection: socket.socket) -> str:
    line = b""
    try:
        while not line.endswith(b"\n"):
            octet = connection.recv(1)
            if not octet:
                return "end"
            line += octet
    except OSError as error:
        return type(error).__name__
    return line.decode().rstrip("\n")


def main() -> None:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=SECONDS) as connection:
        print("connected", flush=True)
        for line in sys.stdin:
            command, _, text = line.rstrip("\n").partition(" ")
            answer = "sent"
            if command in {"send", "ask"}:
                connection.sendall(text.encode() + b"\n")
            if command in {"hear", "ask"}:
                answer = hear(connection)
            if command == "stuck":
                answer = stuck(connection)
            if command == "from":
                answer = connection.getsockname()[0]
            print(answer, flush=True)


if __name__ == "__main__":
    main()
