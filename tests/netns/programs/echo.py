"""echo.py HOST: listens on a free port of HOST, says `listening HOST PORT`, and sends back what it gets, for ever."""

from __future__ import annotations

import socket
import sys
import threading


def serve(connection: socket.socket) -> None:
    with connection:
        try:
            while data := connection.recv(65536):
                connection.sendall(data)
        except OSError:  # reset
            pass


def main() -> None:
    family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
    with socket.create_server((sys.argv[1], 0), family=family) as listener:
        print("listening", *listener.getsockname()[:2], flush=True)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
