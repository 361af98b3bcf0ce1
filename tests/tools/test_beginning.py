"""Tests of what a newcomer meets first: `monarch` alone, `monarch demo`, `monarch init`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch.admin.programs import Program
from monarch.tools import cli, project, welcome
from tests.support import json_lines
from tests.support.command_line import TIMEOUT, CommandLine, command_line
from tests.support.tiers import full

PROGRAMS = [Program("/run/a", 4711, 0.0, "python train.py"), Program("/run/b", 4712, 0.0, "python serve.py")]


@pytest.mark.parametrize(
    ("programs", "kept", "described", "said", "commands"),
    [
        (
            [],
            False,
            "",
            "Nothing of yours runs on this machine, and this folder describes no job.",
            ["demo", "init", "run"],
        ),
        ([], False, "/p/monarch.toml", "/p/monarch.toml describes the jobs of this project.", ["apply", "run", "exec"]),
        ([], True, "/p/monarch.toml", "The job of this folder has hosts.", ["status", "exec", "kill"]),
        (PROGRAMS[:1], True, "", "A program of yours runs on this machine:", ["status", "doctor", "tui"]),
        (PROGRAMS, False, "", "2 programs of yours run on this machine:", ["status", "doctor", "tui"]),
    ],
)
def test_what_to_do_next(programs: list[Program], kept: bool, described: str, said: str, commands: list[str]) -> None:
    lines = welcome.page("1.2", programs, kept, described).splitlines()
    assert lines[0].startswith("pymonarch 1.2: ") and said in lines
    assert [line.split()[1] for line in lines if line.startswith("  monarch ")] == commands
    assert all(any(str(program.pid) in line and program.command in line for line in lines) for program in programs)
    for line in (line for line in lines if line.startswith("  monarch ")):
        assert cli.get_parser().parse_args(line.split("   ")[0].split()[1:]).verb == line.split()[1]


def test_monarch_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("monarch.admin.programs.running_programs", list)
    assert cli.main([]) == 0
    assert "\n  monarch demo " in capsys.readouterr().out
    cli.main(["init"])
    capsys.readouterr()
    assert cli.main([]) == 0
    assert f"{tmp_path}/monarch.toml describes the jobs of this project." in capsys.readouterr().out
    (tmp_path / "monarch.toml").write_text("default-job = [\n")
    assert cli.main([]) == 0
    assert "describes no job" in capsys.readouterr().out


def test_a_project_is_made_where_none_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "one"
    assert cli.main(["init", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"Made train.py, monarch.toml, .gitignore in {folder}." in out and f"  cd {folder}\n" in out
    assert {file.name: file.read_text() for file in folder.iterdir()} == project.FILES
    (folder / "train.py").unlink()
    (folder / "monarch.toml").write_text("mine")
    assert cli.main(["init", str(folder)]) == 1
    said = f"monarch init: {folder} has monarch.toml, .gitignore already: name a folder that is new, "
    assert capsys.readouterr().err == f"{said}`monarch init my_project`\n"
    assert (folder / "monarch.toml").read_text() == "mine" and not (folder / "train.py").exists()
    assert cli.main(["init", str(tmp_path / "json"), "--json"]) == 0
    (made,) = json_lines.read(capsys.readouterr().out, 0)
    assert made.files == list(project.FILES)


def test_a_link_that_leads_nowhere_is_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").symlink_to(tmp_path / "elsewhere")
    assert cli.main(["init", str(tmp_path)]) == 1
    assert "has train.py already" in capsys.readouterr().err and not (tmp_path / "elsewhere").exists()


@pytest.fixture
def monarch(tmp_path: Path) -> Iterator[CommandLine]:
    with command_line(tmp_path) as line:
        yield line


def program(monarch: CommandLine, file: str) -> str:
    """Runs a program in the folder, and returns what it has printed."""
    done = subprocess.run(
        [sys.executable, file],
        cwd=monarch.folder,
        env=monarch.environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@full
@pytest.mark.procs
def test_the_project_runs(monarch: CommandLine) -> None:
    monarch("init")
    assert program(monarch, "train.py").splitlines()[-1] == "step 20: slope 3.000, from 4 ranks on 2 hosts"
    assert "The job of this folder has hosts." in monarch().stdout
    monarch("kill")


@full
@pytest.mark.procs
def test_the_demonstration_is_a_program(monarch: CommandLine) -> None:
    (monarch.folder / "demo.py").write_text(monarch("demo", "--source").stdout)
    assert "SupervisionError" in program(monarch, "demo.py")
    *steps, last = json_lines.read(monarch("demo", "--json").stdout, 0)
    assert len(steps) == 5 and "Killed(sig=9)" in steps[3].said and last.seconds > 0
    assert steps[1].said == "[2.95, 3.93, 4.91, 5.89], from every rank"
    assert steps[4].said.endswith("in a new process\n[3.0, 4.0, 4.91, 6.0]")
