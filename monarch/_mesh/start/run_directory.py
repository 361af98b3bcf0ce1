"""The folder of one client's run, where its sockets live: 0700, removed with the run.

<base>/monarch-<uid>/<id>/    agent, client, <mesh uid>.<rank>: sockets; pid: the client's process id
"""

from __future__ import annotations

import os
import socket
import stat

from monarch._wire.ids import new_id
from monarch.config import settings


def make_directory() -> str:
    """A fresh folder for this client's sockets, 0700, in one that only this user can enter."""
    import tempfile  # slow to import; used when a client starts

    given = str(settings.get("runtime_dir"))
    base = given or os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    parent = os.path.join(base, f"monarch-{os.getuid()}")
    hint = "say where with MONARCH_RUNTIME_DIR or monarch.configure(runtime_dir=...)"
    try:
        if not os.path.isdir(base):
            raise FileNotFoundError(2, "No such directory", base)
        directory = _make_both(parent)
        status = os.lstat(parent)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise PermissionError(1, "it belongs to somebody else", parent)
        if status.st_mode & 0o077:
            os.chmod(parent, 0o700)
        _sweep(parent)
        with open(os.path.join(directory, "pid"), "w") as file:
            file.write(str(os.getpid()))
    except OSError as exc:
        raise RuntimeError(
            f"monarch cannot make its runtime folder in {base!r}: {exc.strerror} ({exc.filename}); {hint}"
        ) from exc
    return directory


def _sweep(parent: str) -> None:
    """Removes folders of clients that died together with their agents."""
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        try:
            with open(os.path.join(path, "pid")) as file:
                pid = int(file.read() or "0")
        except (OSError, ValueError):
            continue
        if pid and not os.path.exists(f"/proc/{pid}"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                try:
                    probe.connect(os.path.join(path, "agent"))
                except OSError:
                    remove_directory(path)


def _make_both(parent: str) -> str:
    """The run's folder, and the user's around it, which another run may be removing just now."""
    for attempt in range(10):
        try:
            os.makedirs(parent, mode=0o700, exist_ok=True)
            directory = os.path.join(parent, new_id())
            os.mkdir(directory, 0o700)
            return directory
        except FileNotFoundError:
            if attempt == 9:
                raise
    raise AssertionError("unreachable")


def remove_directory(directory: str) -> None:
    """Removes a run's folder, and the user's folder when this was the last run in it."""
    import shutil

    shutil.rmtree(directory, ignore_errors=True)
    try:
        os.rmdir(os.path.dirname(directory))
    except OSError:  # others run
        pass
