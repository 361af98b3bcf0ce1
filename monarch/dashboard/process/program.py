"""The process beside a program: `python -m monarch.dashboard.process.program FOLDER OWNER READY`.

It listens at FOLDER/socket, says so on the descriptor READY, and ends with the process OWNER, whatever way that ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import socket
import sys
import threading

from monarch._linux import local_socket
from monarch.dashboard.process.observer_state import ObserverState, answer_connection

logger = logging.getLogger("monarch.observer")

_CONNECTIONS = 64
_ATTEMPTS = 200  # at the lock
_BETWEEN = 0.05


def main() -> None:
    folder, owner, ready = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    try:
        alive = os.pidfd_open(owner)
    except ProcessLookupError:
        return
    if os.getppid() != owner or not own(folder):
        return  # the owner has ended, or has just started another
    path = os.path.join(folder, "socket")
    if os.path.lexists(path):
        os.unlink(path)  # of one that was killed
    ended, end = os.pipe2(os.O_CLOEXEC)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listening:
        listening.bind(path)
        listening.listen(_CONNECTIONS)
        observer = ObserverState()
        threading.Thread(target=accept, args=(listening, observer, end), name="accept", daemon=True).start()
        os.write(ready, b"ready")
        os.close(ready)
        select.select([alive, ended], [], [])
    observer.close()
    for name in ("socket", "lock"):
        try:
            os.unlink(os.path.join(folder, name))
        except OSError:
            pass
    os._exit(0)  # queries may still run


def own(folder: str) -> bool:
    """Takes the folder's lock for as long as this process lives. False when another observer has it, and answers; one that
    was killed may hold it for a moment longer than its sockets."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    pause = threading.Event()
    for _ in range(_ATTEMPTS):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if _answers(os.path.join(folder, "socket")):
                return False
        pause.wait(_BETWEEN)
    raise RuntimeError(f"the lock of {folder} is taken, and nobody answers there")


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        return connection.connect_ex(path) == 0


def accept(listening: socket.socket, observer: ObserverState, end: int) -> None:
    places = threading.BoundedSemaphore(_CONNECTIONS)
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:  # it is closed: this process ends
            return
        try:
            local_socket.check_peer(connection, "an observer's socket")
            if not places.acquire(blocking=False):
                raise ConnectionRefusedError(f"more than {_CONNECTIONS} connections")
        except OSError as exc:
            logger.warning("refused: %s", exc)
            connection.close()
            continue

        def run(connection: socket.socket = connection) -> None:
            try:
                answer_connection(connection, observer, lambda: os.write(end, b"."))
            finally:
                places.release()

        threading.Thread(target=run, name="connection", daemon=True).start()


if __name__ == "__main__":
    main()
