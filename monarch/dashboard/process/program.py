"""The process beside a program: `python -m monarch.dashboard.process.program FOLDER READY OWNER THREAD`.

It listens at FOLDER/socket, says so on the descriptor READY, and ends with the process OWNER, whatever way that ends,
also when it becomes another program (see `companion.CompanionOwner`).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading

from monarch._linux import companion
from monarch.dashboard.process.observer_state import ObserverState, answer_connection

_CONNECTIONS = 64


def main() -> None:
    folder, ready = sys.argv[1], int(sys.argv[2])
    companion.log_to_stderr()
    try:
        owner = companion.CompanionOwner(int(sys.argv[3]), int(sys.argv[4]))
    except ProcessLookupError:
        return
    if not companion.take(folder):
        return  # the owner has just started another
    ended, end = os.pipe2(os.O_CLOEXEC)

    def stop() -> None:
        os.write(end, b".")

    signal.signal(signal.SIGTERM, lambda *_: stop())
    observer = ObserverState(stop)

    def talk(connection: socket.socket) -> None:
        answer_connection(connection, observer, stop)

    with companion.listen(folder, ready) as listening:
        served = (listening, "an observer's socket", _CONNECTIONS, talk)
        threading.Thread(target=companion.serve, args=served, name="accept", daemon=True).start()
        owner.wait(ended)
    observer.close()
    for name in ("socket", "lock"):
        try:
            os.unlink(os.path.join(folder, name))
        except OSError:
            pass
    os._exit(0)  # queries may still run


if __name__ == "__main__":
    main()
