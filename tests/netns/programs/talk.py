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


def unacknowledged(connection: socket.socket) -> bool:
    # struct tcp_info (linux/tcp.h): state, ca_state, retransmits: of one octet each.
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[2] > 0


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
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60) as connection:
        print("connected", flush=True)
        for line in sys.stdin:
            command, _, text = line.rstrip("\n").partition(" ")
            answer = "sent"
            if command in {"send", "ask"}:
                connection.sendall(text.encode() + b"\n")
            if command in {"hear", "ask"}:
                answer = hear(connection)
            if command == "stuck":
                while not unacknowledged(connection):
                    select.select([], [], [], 0.005)
                answer = "stuck"
            if command == "from":
                answer = connection.getsockname()[0]
            print(answer, flush=True)


if __name__ == "__main__":
    main()
