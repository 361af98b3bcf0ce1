"""A helper process for tests, which tells its pid: `python -m tests._linux.helper_program FOLDER READY OWNER THREAD`."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading

from monarch._linux import companion


def talk(connection: socket.socket) -> None:
    with connection:
        connection.sendall(str(os.getpid()).encode())


def main() -> None:
    companion.log_to_stderr()
    if "DEAF" in os.environ:
        signal.pause()
    said = sys.stdin.read()
    if said == "fail":
        sys.exit("it was told to fail")
    owner = companion.CompanionOwner(int(sys.argv[3]), int(sys.argv[4]))
    if not companion.take(sys.argv[1]):
        return
    never, _ = os.pipe()
    with companion.listen(sys.argv[1], int(sys.argv[2])) as listening:
        threading.Thread(target=companion.serve, args=(listening, "a socket", 8, talk), daemon=True).start()
        owner.wait(never)


if __name__ == "__main__":
    main()
