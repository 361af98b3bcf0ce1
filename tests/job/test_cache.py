"""The file of a job: who may write it, and programs that want it at the same time."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from monarch.job import cache, job_load
from tests.support.scripts import Scripts
from tests.support.tiers import full
from tests.support.users import STRANGER, as_stranger, needs_root

ROOT = Path(__file__).resolve().parents[2]


class Tripwire:
    """Says when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666], ids=oct)
def test_a_file_that_others_may_write_is_not_read(tmp_path: Path, mode: int) -> None:
    file, mark = tmp_path / "state.pkl", tmp_path / "mark"
    file.write_bytes(pickle.dumps(Tripwire(mark)))
    file.chmod(mode)
    with pytest.raises(PermissionError, match=rf"may be written by others \(mode {mode:04o}\).*chmod 600"):
        cache.read(file)
    assert not mark.exists()
    file.chmod(0o644)
    cache.read(file)
    assert mark.exists()


@needs_root
def test_a_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    file, mark = tmp_path / "state.pkl", tmp_path / "mark"
    file.write_bytes(pickle.dumps(Tripwire(mark)))
    file.chmod(0o600)
    os.chown(file, 65534, 65534)
    with pytest.raises(PermissionError, match="belongs to user 65534"):
        cache.read(file)
    assert not mark.exists()


@pytest.fixture
def anybodys(open_folder: Path) -> Path:
    """A folder in which everybody may write, also what the kernel does not protect as it does in a sticky one."""
    folder = open_folder / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@needs_root
@pytest.mark.parametrize("where", ["", ".monarch"])
def test_what_a_strangers_link_leads_to_is_not_read(anybodys: Path, where: str) -> None:
    """To /proc/PID/cmdline of a program that he has us run: it is a file of ours, and holds what he wants."""
    mark = anybodys.parent / "mark"
    wanted = pickle.dumps(Tripwire(mark), 0)
    link = anybodys / where / "state.pkl"
    with subprocess.Popen([wanted, "1000"], executable="sleep") as ours:

        def plant() -> None:
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(f"/proc/{ours.pid}/cmdline")

        as_stranger(plant)
        assert Path(f"/proc/{ours.pid}/cmdline").read_bytes().startswith(wanted)
        for read in (cache.read, job_load):
            with pytest.raises(PermissionError, match=f"user {STRANGER}.*it was not read"):
                read(link)
        ours.kill()
    assert not mark.exists()


@needs_root
def test_what_a_stranger_has_put_where_the_lock_is_stays_as_it_is(anybodys: Path) -> None:
    mine = anybodys.parent / "mine"
    mine.write_text("mine")
    as_stranger(lambda: (anybodys / "state.pkl.lock").symlink_to(mine))
    with pytest.raises(PermissionError), cache.locked(anybodys / "state.pkl", print):
        pass
    assert mine.read_text() == "mine"


def test_a_fifo_for_a_jobs_file_holds_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "state.pkl")
    with pytest.raises(PermissionError, match=r"state\.pkl is not an ordinary file"):
        job_load(tmp_path / "state.pkl")


@pytest.mark.parametrize("content", [b"", b"\x80\x05", pickle.dumps(3)], ids=["empty", "cut", "number"])
def test_what_is_no_job_says_so(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "state.pkl"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"state\.pkl .*job"):
        job_load(file)
    with pytest.raises(FileNotFoundError):
        job_load(tmp_path / "missing")


def test_a_file_is_replaced_as_a_whole_and_stays_private(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "state.pkl"
    link = tmp_path / "link.pkl"
    link.symlink_to("a/b/state.pkl")
    cache.write(link, b"1")
    with open(file, "rb") as before:
        cache.write(link, b"2")
        assert (before.read(), file.read_bytes(), link.is_symlink()) == (b"1", b"2", True)
    assert oct(file.stat().st_mode & 0o777) == "0o600"
    assert oct(file.parent.stat().st_mode & 0o777) == "0o700"
    assert os.listdir(file.parent) == ["state.pkl"]


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(OSError, match="cached_path=None"):
        cache.write(tmp_path / "taken" / "state.pkl", b"")


def test_one_program_at_a_time(tmp_path: Path) -> None:
    """The second waits, says for whom, and goes on when the first is killed."""
    file = tmp_path / "state.pkl"
    holder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(f"""
            from monarch.job import cache
            with cache.locked({str(file)!r}, print):
                print("held", flush=True)
                input()
        """)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdin is not None and holder.stdout is not None
    with holder.stdin, holder.stdout:
        assert holder.stdout.readline() == "held\n"
        said = []

        def waiting(who: str) -> None:
            said.append(who)
            holder.kill()

        with cache.locked(file, waiting):
            holder.wait()
    assert said == [f"process {holder.pid} on {os.uname().nodename}"]


@full
@pytest.mark.procs
def test_two_programs_that_start_at_once_share_one_job(scripts: Scripts) -> None:
    program = """
        from monarch.actor import Actor, endpoint
        from monarch.job import ProcessJob, job_load

        class A(Actor):
            @endpoint
            def host(self):
                import os
                return os.environ["HYPERACTOR_PROCESS_NAME"]

        job = ProcessJob({"hosts": 1})
        state = job.state()
        print(job.apply_id, state.hosts.spawn_procs().spawn("a", A).host.call_one().get(timeout=300))
        if input() == "kill":
            job.kill()
        """
    first, second = scripts.start(program), scripts.start(program)
    said = [program.stdout.readline() for program in (first, second) if program.stdout is not None]
    assert said[0] == said[1] and said[0].endswith(" hosts_0\n")
    for one, order in ((first, "leave"), (second, "kill")):
        out, err = one.communicate(f"{order}\n", timeout=60)
        assert (one.returncode, out) == (0, ""), err
