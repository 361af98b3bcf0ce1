"""Tab in real shells, each set up as docs/cli.md says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patience import TIMEOUT
from tests.support.terminal import Terminal

pytestmark = pytest.mark.lab


class ShellHome:
    """A home of its own, with what `monarch completion` prints for a shell."""

    def __init__(self, shell: str, folder: Path, rc: str) -> None:
        if shutil.which(shell) is None:
            pytest.skip(f"needs {shell}: make lab")
        self._shell, self._folder, self._terminal = shell, folder, None
        path = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
        self._env = {"HOME": str(folder), "PATH": path, "TERM": "xterm", "PS1": "$ ", "LANG": "C.UTF-8"}
        self._env["MONARCH_RUNTIME_DIR"] = str(folder)
        (folder / rc).parent.mkdir(parents=True, exist_ok=True)
        (folder / rc).write_text(self.run("monarch", "completion", shell))

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self._env, cwd=self._folder, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
        assert done.stderr == "" and done.returncode == 0
        return done.stdout

    def open(self) -> Terminal:
        self._terminal = Terminal([self._shell, "-i"], self._env, str(self._folder))
        return self._terminal

    def close(self) -> None:
        if self._terminal is not None:
            self._terminal.close()


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ShellHome]:
    home = ShellHome(request.param[0], tmp_path, request.param[1])
    yield home
    home.close()


@pytest.mark.parametrize("home", [("bash", ".bashrc"), ("zsh", ".zshrc")], indirect=True, ids=["bash", "zsh"])
def test_tab_completes_verbs_and_shows_which(home: ShellHome) -> None:
    terminal = home.open()
    terminal.until(r"[$#] ")
    terminal.type("monarch quer\t")
    terminal.until("monarch query")  # the only one
    terminal.type("\x15monarch sta\t\t")
    terminal.until("stacks|status")
    terminal.until("stacks|status")
    assert "not found" not in terminal.shown


@pytest.mark.parametrize("home", [("fish", ".config/fish/completions/monarch.fish")], indirect=True, ids=["fish"])
def test_fish_is_told_what_each_does(home: ShellHome) -> None:
    told = home.run("fish", "-c", "complete -C 'monarch sta'").splitlines()
    assert [line.split("\t")[0] for line in told] == ["stacks", "status"] and all("\t" in line for line in told)
