"""Tests of what another user of the machine gains by files that name jobs: nothing."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import socket
import sys
from pathlib import Path

import pytest

import monarch.admin.programs
import monarch.job
from monarch.job import cache, project_file
from monarch.job.commands.standard_input import InputDoor
from monarch.tools import cli, verbs
from tests.support.users import STRANGER, as_stranger, needs_root

pytestmark = needs_root

# Another user may not be able to read the interpreter's own files: what a verb needs is loaded before.
codecs.lookup("ascii")
verbs.all_verbs()
for name in monarch.job.__all__:
    getattr(monarch.job, name)

ME = STRANGER - 1  # root's files are everybody's, so the user of these tests is not root
CALLS = '[jobs.a]\nclass = "subprocess.Popen"\nargs = ["touch", "ran"]\n'


@pytest.fixture
def here(open_folder: Path) -> Path:
    """My folder, in one in which everybody may make entries of their own."""
    open_folder.chmod(0o1777)
    folder = open_folder / "mine"
    folder.mkdir()
    os.chown(folder, ME, ME)
    return folder


def put(path: Path, text: str, owner: int, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.parent.name == ".monarch" or path.parent.parent.name == ".monarch":
        os.chown(path.parent, owner, owner)
        os.chown(path.parent.parent, owner, owner)
    path.write_text(text)
    path.chmod(mode)
    os.chown(path, owner, owner)
    return path


def found(folder: Path) -> str | None:
    """Returns which file speaks of my jobs, for me in that folder; an error's text."""

    def look() -> str | None:
        try:
            project = project_file.find(folder)
        except cache.UnsafeJobFileError as exc:
            return str(exc)
        return None if project is None else project.path

    return as_stranger(look, ME)


@pytest.mark.parametrize("name", project_file.FILES)
def test_a_strangers_project_file_is_not_read(here: Path, name: str) -> None:
    text = CALLS if name == "monarch.toml" else CALLS.replace("jobs.a", "tool.monarch.jobs.a")
    theirs = put(here.parent / name, text, STRANGER)
    assert found(here) is None  # anybody could put it there
    assert f"{theirs} belongs to user {STRANGER}, and what it names would be imported and run: it was not read" in str(
        found(here.parent)
    )
    theirs.rename(here / name)
    assert f"{here / name} belongs to user {STRANGER}" in str(found(here))


def test_the_search_ends_at_the_first_folder_of_somebody_else(here: Path) -> None:
    put(here / "monarch.toml", CALLS, ME)
    between = here / "theirs"
    (between / "below").mkdir(parents=True)
    os.chown(between / "below", ME, ME)
    assert found(between / "below") == str(here / "monarch.toml")
    os.chown(between, STRANGER, STRANGER)
    assert found(between / "below") is None
    assert found(between) is None  # nothing there to refuse
    put(between / "monarch.toml", CALLS, STRANGER)
    assert f"{between} belongs to user {STRANGER} (for {between}/monarch.toml)" in str(found(between))


def test_a_project_file_of_mine_that_others_may_write(here: Path) -> None:
    mine = put(here / "monarch.toml", CALLS, ME, 0o666)
    assert f"{mine} may be written by others (mode 0666)" in str(found(here))
    assert str(found(here)).endswith(f"chmod go-w {mine}")
    mine.rename(here / "pyproject.toml")  # of everybody, but it says nothing about jobs
    put(here / "pyproject.toml", "[project]\nname = 'x'\n", ME, 0o666)
    assert found(here) is None


def test_what_is_no_class_of_jobs_is_not_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    project = project_file.parse(CALLS, "/x/monarch.toml")
    assert project is not None
    for kind in ("subprocess.Popen", "subprocess.call"):
        with pytest.raises(ValueError, match=rf"job a: {kind} is not a class of jobs, and was not called"):
            project_file.build(project_file.Described("a", kind, {"args": ["touch", "ran"]}, [], {}), project.path)
    assert not (tmp_path / "ran").exists()


# --- the command line

VERBS = [["status"], ["logs"], ["apply"], ["exec", "true"], ["shell"], ["kill"]]


def told(folder: Path, words: list[str], uid: int = ME) -> tuple[int, str]:
    """Returns what the command says in that folder: its status, and what it writes to stderr."""
    cli.get_parser()  # loads what a stranger may not read where this checkout is

    def run() -> tuple[int, str]:
        os.chdir(folder)
        sys.path[:] = [entry for entry in sys.path if entry not in ("", os.getcwd())]
        os.environ["MONARCH_RUNTIME_DIR"] = str(folder.parent)
        stderr = io.StringIO()
        with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(stderr):
            status = cli.main(words)
        return status, stderr.getvalue()

    return as_stranger(run, uid)


def theirs(folder: Path) -> Path:
    put(folder / "evil.py", f"open({str(folder / 'ran')!r}, 'w')\n", STRANGER)
    return put(folder / ".monarch/default/spec", "evil.job\n", STRANGER)


@pytest.mark.parametrize("words", VERBS, ids=lambda words: words[0])
@pytest.mark.parametrize("whose", [ME, STRANGER], ids=["mine", "theirs"])
def test_a_strangers_context_is_not_read(here: Path, whose: int, words: list[str]) -> None:
    """Names it in whosever working directory: the sentence names the file or folder that is wrong, and its
    owner."""
    spec = theirs(here)
    os.chown(here, whose, whose)
    here.chmod(0o777)
    status, said = told(here, words)
    named = here if whose == STRANGER else spec.parent.parent
    assert status == 77 and f"{named} belongs to user {STRANGER} (for .monarch/default/spec)" in said, said
    assert not (here / "ran").exists()


def test_modules_are_not_imported_from_where_others_may_write(here: Path) -> None:
    """Although I name the module myself; nor does one of the standard library come from there."""
    theirs(here)
    (here / ".monarch").rename(here / "away")
    shadow = put(here / "difflib.py", f"open({str(here / 'ran')!r}, 'w')\n", STRANGER)
    here.chmod(0o777)
    status, said = told(here, ["apply", "evil.job"])
    assert status == 66 and f"{here} may be written by others (mode 0777)" in said and "PYTHONPATH" in said, said
    put(here / "monarch.toml", '[jobs.a]\nclass = "evil.Job"\n', ME)
    status, said = told(here, ["exec", "true"])
    assert status == 66 and "No module named 'evil'" in said and "PYTHONPATH" in said, said
    here.chmod(0o755)
    shadow.unlink()
    status, said = told(here, ["exec", "true"])
    assert status == 1 and "module evil has no Job" in said, said  # as it always was


def test_a_folder_of_somebody_else_without_jobs_is_like_any_other(here: Path) -> None:
    os.chown(here, STRANGER, STRANGER)
    status, said = told(here, ["kill"])
    assert status == 66 and "no job runs in context 'default' of this folder" in said, said
    status, said = told(here, ["context", "create", "mine"])
    assert status == 77 and f"{here} belongs to user {STRANGER}" in said, said


@pytest.mark.parametrize("name", ["..", "a\x1b[31m", "-x"])
def test_a_strangers_link_names_no_other_context(here: Path, name: str) -> None:
    put(here / ".monarch/default/spec", "x.y", STRANGER)
    (here / ".monarch/job_state.pkl").symlink_to(f"{name}/state.pkl")
    (here / ".monarch" / "a\x1b[31m").mkdir()
    assert told(here, ["context", "ls"]) == (0, "* default\n")


def test_removing_a_context_follows_no_link_of_a_stranger(here: Path) -> None:
    """Else it would remove a folder of mine, far from here."""
    kept = put(here / "elsewhere/letters/one", "dear", ME)
    for folder in (kept.parent, kept.parent.parent):
        os.chown(folder, ME, ME)
    here.chmod(0o777)
    as_stranger(lambda: os.symlink("elsewhere", here / ".monarch"))
    status, said = told(here, ["context", "rm", "letters"])
    assert status == 77 and f"{here}/.monarch is a link of user {STRANGER}" in said, said
    assert kept.exists()


@pytest.mark.parametrize("verb", ["status", "logs", "kill"])
def test_looking_imports_nothing(here: Path, verb: str) -> None:
    """Not even of mine: only what is to start a job has to have it."""
    put(here / ".monarch/default/spec", "evil.job\n", ME)
    put(here / "evil.py", f"open({str(here / 'ran')!r}, 'w')\n", ME)
    status, said = told(here, [verb])
    assert status == 66 and ("does not run" in said or "no job runs" in said), said
    assert not (here / "ran").exists()


def test_the_standard_input_of_a_command_is_given_to_its_user_alone() -> None:
    def asked() -> bytes:
        """Returns what is answered under the name that everybody sees in /proc/net/unix."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(60)
            sock.connect(door.name)
            try:
                return sock.recv(1)
            except ConnectionResetError:
                return b""

    with InputDoor() as door:
        assert door.name, "there is standard input"
        assert as_stranger(asked) == b""
        assert asked() == b"0"
