"""HTTP servers on this machine that tests ask."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serves on a port of loopback, logging nothing; gives "127.0.0.1:PORT"."""
    quiet = type(handler.__name__, (handler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
