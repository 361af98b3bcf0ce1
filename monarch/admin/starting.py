"""The admin server of the program that runs here: `start` has the program's observer serve it."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from monarch._linux import terminal
from monarch._linux.locks import Lock
from monarch._mesh import plugins
from monarch._runtime.future import Future, done_future
from monarch.config import settings
from monarch.telemetry.starting import FOLDER, run_folder, tls_files

logger = logging.getLogger("monarch.admin")

_URL = "MONARCH_ADMIN_URL"
TOKEN = "MONARCH_ADMIN_TOKEN"
_CA = "MONARCH_TLS_CA"


class Admin:
    """A server that answers questions about this program, at `url`; for other machines there is a token in that."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __repr__(self) -> str:
        return f"<Admin {self.url}>"


_lock = Lock()
_running: Admin | None = None


def start(admin_addr: str | None = None) -> Admin:
    """Serves the admin API of this program at `admin_addr` (host:port; None: the setting mesh_admin_addr), from a process
    beside it that ends with it. Prints where.

    A port that is taken is replaced by any free one, which is said. An address beyond this machine is for those who have the
    URL, which has a token in it. Called again it gives what runs; the first call's address holds. MONARCH_ADMIN_URL is set
    for tools that this program starts.

    ImportError when the packages of the extra `admin` are missing; RuntimeError in a process of a mesh, or when nothing can
    be served there.
    """
    global _running
    check_installed()
    folder = run_folder("the admin server")
    with _lock:
        if _running is not None:
            return _running
        addresses = plugins.outer("observer.start")(
            os.path.join(folder, FOLDER),
            program=folder,
            admin=True,
            admin_addr=admin_addr or settings.mesh_admin_addr() or None,
            **tls_files(),
        )
        for note in addresses.notes:
            logger.warning("%s", note)
        if not addresses.admin_url:
            raise RuntimeError(
                f"the admin server could not be started: {'; '.join(addresses.notes) or 'no reason is known'}"
            )
        _running = Admin(addresses.admin_url)
    announce(_running.url)
    return _running


def announce(url: str) -> None:
    """Says where it is, for people and for tools of this process."""
    os.environ[_URL] = url
    terminal.show(block(url, os.environ.get(_CA, "")))


def block(url: str, ca: str = "") -> str:
    """Returns what is printed at the start. Pure. `ca`: the file of the authority that the server's certificate is of.

    A token goes into a variable of the shell: command lines can be read by everybody on a machine.
    """
    parts = urlsplit(url)
    base, token = f"{parts.scheme}://{parts.netloc}", parse_qs(parts.query).get("token", [""])[0]
    curl = f"curl --cacert {ca}" if ca and parts.scheme == "https" else "curl"
    if token:
        curl += f' -H @<(echo "Authorization: Bearer ${TOKEN}")'
    return "\n".join(
        [
            f"Mesh admin server listening on {url}",
            *([f"  - In the shell, first: export {TOKEN}={token}"] if token else []),
            f"  - Root node: {curl} {base}/v1/root",
            f"  - Mesh tree: {curl} {base}/v1/tree",
            f"  - API docs: {curl} {base}/SKILL.md",
            f"  - TUI: monarch tui --addr {base}" + (f" --tls-ca {ca}" if "--cacert" in curl else ""),
        ]
    )


def check_installed() -> None:
    """ImportError, which says how to get them, when packages are missing."""
    try:
        import starlette
        import uvicorn
    except ModuleNotFoundError as exc:
        raise ImportError(f"the admin server needs {exc.name}: pip install 'pymonarch[admin]'", name=exc.name) from None
    del starlette, uvicorn


def spawn_admin(
    hosts: Sequence[Any], admin_addr: str | None = None, telemetry_url: str | None = None
) -> Future[tuple[str, None]]:
    """Starts the admin as older programs do: a Future of (url, None). ValueError for no hosts.

    `telemetry_url` is not needed: the server knows its telemetry.
    """
    if not hosts:
        raise ValueError("spawn_admin needs at least one host mesh, got an empty list")
    return done_future((start(admin_addr).url, None))
