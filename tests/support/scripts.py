"""Programs with a client of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import TIMEOUT

ROOT = Path(__file__).resolve().parents[2]


class Scripts:
    """Runs Python source as a program: `run` to its end, `start` to talk to it."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.folder = folder
        self.runtime = runtime
        self._started: list[subprocess.Popen[str]] = []
        self._watchdogs: list[threading.Timer] = []
        self._count = 0

    def start(
        self, source: str, *args: str, env: dict[str, str] | None = None, limit: float = 2 * TIMEOUT, **options: Any
    ) -> subprocess.Popen[str]:
        """`limit`: the seconds after which it is killed, for a program that is asked many things."""
        self._count += 1
        file = self.folder / f"program{self._count}.py"
        file.write_text(textwrap.dedent(source))
        path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
        environment = os.environ | {"PYTHONPATH": path, "MONARCH_RUNTIME_DIR": str(self.runtime)} | (env or {})
        settings: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "cwd": self.folder,
            "start_new_session": True,
        } | options
        process = subprocess.Popen([sys.executable, str(file), *args], env=environment, text=True, **settings)
        self._started.append(process)
        # Whoever reads from a program that says nothing more gets an end of file instead of waiting for ever.
        watchdog = threading.Timer(limit, process.kill)
        watchdog.daemon = True
        watchdog.start()
        self._watchdogs.append(watchdog)
        return process

    def run(
        self, source: str, *args: str, env: dict[str, str] | None = None, check: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(source, *args, env=env, **options)
        try:
            out, err = process.communicate(timeout=1.5 * TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate(timeout=TIMEOUT)
            pytest.fail(f"the program did not end.\n--- stdout\n{out}\n--- stderr\n{err}")
        if check:
            assert process.returncode == 0, f"exit {process.returncode}\n--- stdout\n{out}\n--- stderr\n{err}"
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def close(self) -> None:
        for watchdog in self._watchdogs:
            watchdog.cancel()
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait(TIMEOUT)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
