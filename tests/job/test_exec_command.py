"""exec_command: programs on real hosts, what they print, and how they end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from monarch.actor import HostMesh, SupervisionError, get_active_proc_meshes, this_host
from monarch.job.commands.run_command import exec_command
from tests.support.hosts import Hosts
from tests.support.patience import TIMEOUT
from tests.support.processes import Watch
from tests.support.scripts import Scripts
from tests.support.tiers import full

pytestmark = pytest.mark.procs


def run(*args: object, **options: object) -> int:
    return exec_command(*args, **options).get(TIMEOUT)  # type: ignore[arg-type]


@pytest.fixture
def two(hosts: Hosts) -> HostMesh:
    return hosts.attach(hosts.start(), hosts.start())


def test_every_host_runs_it_and_the_largest_status_counts(two: HostMesh, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(two, ['echo at $MONARCH_RANK_hosts of $MONARCH_SIZE_hosts; exit "$MONARCH_RANK_hosts"']) == 1
    assert sorted(capfd.readouterr().out.splitlines()) == ["[hosts=0] at 0 of 2", "[hosts=1] at 1 of 2"]
    assert run(two, ["echo", "$MONARCH_RANK_hosts", "a  b"], point={"hosts": 1}) == 0
    assert capfd.readouterr().out == "$MONARCH_RANK_hosts a  b\n"
    # The dimension in which a host was chosen stays known to the program.
    assert (
        run(two, ["echo $MONARCH_RANK_hosts $MONARCH_SIZE_hosts $MONARCH_RANK_gpu"], rank=1, per_host={"gpu": 1}) == 0
    )
    assert capfd.readouterr().out == "1 2 0\n"


@full
def test_each_process_has_files_of_its_own(two: HostMesh, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cmd = ["echo out $MONARCH_RANK_hosts $MONARCH_RANK_gpu; echo err $MONARCH_RANK_gpu >&2"]
    assert run(two, cmd, per_host={"gpu": 2}, output_dir=str(tmp_path / "o")) == 0
    found = {str(path.relative_to(tmp_path / "o")): path.read_text() for path in (tmp_path / "o").rglob("*.txt")}
    assert found == {
        f"hosts_{host}_gpu_{gpu}/{name}.txt": f"out {host} {gpu}\n" if name == "stdout" else f"err {gpu}\n"
        for host in (0, 1)
        for gpu in (0, 1)
        for name in ("stdout", "stderr")
    }
    assert capfd.readouterr() == ("", "")


def test_environment_folder_and_script(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sub").mkdir()
    assert run(this_host(), ["pwd; echo $A"], env={"A": "x y"}, workdir=str(tmp_path / "sub")) == 0
    assert capfd.readouterr().out == f"{tmp_path}/sub\nx y\n"
    assert run(this_host(), ["pwd"]) == 0
    assert capfd.readouterr().out == f"{os.getcwd()}\n"
    # A script may be long, and is on no command line.
    words = b"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c hun[t]er2\n"
    script = b"# hunter2 " + b"x" * (5 << 20) + b'\necho "$0" "$@" $MONARCH_RANK_gpu\n' + words + b"exit 3\n"
    assert run(this_host(), ["setup.sh", "a  b"], script=script, per_host={"gpu": 1}) == 3
    assert capfd.readouterr() == ("setup.sh a  b 0\n0\n", "")


@full
def test_output_is_for_this_users_eyes_alone(open_folder: Path) -> None:
    """Holds whatever the umask; and what somebody else has made there is not written to."""
    before = os.umask(0)
    try:
        assert run(this_host(), ["echo out"], output_dir=str(open_folder / "new" / "deep")) == 0
    finally:
        os.umask(before)
    found = {path.relative_to(open_folder).as_posix(): path.stat().st_mode & 0o777 for path in open_folder.rglob("*")}
    assert found == {"new": 0o700, "new/deep": 0o700, "new/deep/stdout.txt": 0o600, "new/deep/stderr.txt": 0o600}
    victim = open_folder / "precious"
    victim.write_text("mine")
    (open_folder / "stdout.txt").symlink_to(victim)
    with pytest.raises(PermissionError, match=r"stdout\.txt is a link: what a command writes is not put there"):
        run(this_host(), ["echo out"], output_dir=str(open_folder))
    assert victim.read_text() == "mine"


@full
def test_the_interpreter_of_the_mesh_goes_first_on_the_path(capfd: pytest.CaptureFixture[str]) -> None:
    folder = os.path.dirname(sys.executable)
    hosts = this_host().with_python_executable(sys.executable)
    assert run(hosts, ['echo "${PATH%%:*}"']) == 0
    assert capfd.readouterr().out == f"{folder}\n"


def test_statuses(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plain").touch()
    assert run(this_host(), ["no-such-program", "x"]) == 127
    assert capfd.readouterr().err == "no-such-program: No such file or directory\n"
    assert run(this_host(), [str(tmp_path / "plain")]) == 126
    assert capfd.readouterr().err == f"{tmp_path}/plain: Permission denied\n"
    for cmd in (["true"], [str(tmp_path / "x.py")]):
        assert run(this_host(), cmd, workdir="/no/such/folder") == 127
        assert capfd.readouterr().err == "/no/such/folder: No such file or directory\n"
    assert run(this_host(), ["kill -9 $$"]) == 137
    assert run(this_host(), ["true"]) == 0


def python(folder: Path, text: str) -> str:
    (folder / "neighbour.py").write_text("NAME = 'beside'\n")
    (folder / "program.py").write_text(text)
    return str(folder / "program.py")


def test_python_in_the_process_itself(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for text, status, out, err in [
        (
            "import sys, neighbour; print(__name__, sys.argv[1:], neighbour.NAME)",
            0,
            "__main__ ['a', '-b'] beside\n",
            "",
        ),
        ("import os; os.system('echo a child')", 0, "a child\n", ""),
        ("import sys; sys.exit(7)", 7, "", ""),
        ("import sys; sys.exit()", 0, "", ""),
        ("import sys; sys.exit('bad luck')", 1, "", "bad luck\n"),
        ("raise KeyboardInterrupt", 130, "", ""),
    ]:
        assert run(this_host(), [python(tmp_path, text), "a", "-b"]) == status, text
        assert capfd.readouterr() == (out, err), text
    program = python(tmp_path, "def f():\n    raise ValueError('wrong')\nf()\n")
    assert run(this_host(), [program]) == 1
    err = capfd.readouterr().err
    assert err.startswith(f'Traceback (most recent call last):\n  File "{program}", line 3, in <module>')
    assert err.endswith("ValueError: wrong\n") and "runpy" not in err


def test_modules_and_missing_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    python(tmp_path, "import sys; print('module', sys.argv[1:])")
    assert run(this_host(), ["-m", "program", "--flag"], workdir=str(tmp_path)) == 0
    assert capfd.readouterr().out == "module ['--flag']\n"
    assert run(this_host(), [str(tmp_path / "gone.py")]) == 2
    assert f"can't open file '{tmp_path}/gone.py'" in capfd.readouterr().err


@full
def test_much_output_arrives_whole(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(this_host(), [sys.executable, "-c", "for i in range(100_000): print(i)"]) == 0
    assert capfd.readouterr().out == "".join(f"{number}\n" for number in range(100_000))


@full
def test_what_it_leaves_running_ends_with_it(tmp_path: Path, watch: type[Watch]) -> None:
    assert run(this_host(), [f"sleep 1000 & echo $! > {tmp_path}/pid"]) == 0
    assert watch([int((tmp_path / "pid").read_text())]).survivors(TIMEOUT) == {}


@full
def test_wrong_arguments_are_told_at_the_call(two: HostMesh) -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match="not both"):
        exec_command(two, ["true"], rank=0, point={"hosts": 0})
    with pytest.raises(ValueError, match=r"rank 2 is not one of the 2 host\(s\)"):
        exec_command(two, ["true"], rank=2)
    with pytest.raises(TypeError, match="racks"):
        exec_command(two, ["true"], point={"racks": 0})
    with pytest.raises(ValueError, match="gpu"):
        exec_command(two, ["true"], per_host={"gpu": 0})
    assert threading.active_count() <= before


def test_the_future_may_be_asked_again_and_from_asyncio(capfd: pytest.CaptureFixture[str]) -> None:
    future = exec_command(this_host(), ["echo once; exit 4"])

    async def wait() -> list[int]:
        return [await future, await future]

    assert asyncio.run(wait()) == [4, 4] and future.get(TIMEOUT) == 4
    assert capfd.readouterr().out == "once\n"


@full
def test_a_lost_process_is_an_error_and_the_others_are_stopped(two: HostMesh, tmp_path: Path, faults: object) -> None:
    program = python(
        tmp_path, "import os; os.kill(os.getpid(), 9) if os.environ['MONARCH_RANK_hosts'] == '1' else None"
    )
    with pytest.raises(SupervisionError):
        run(two, [program])
    assert [mesh for mesh in get_active_proc_meshes() if "exec" in repr(mesh)] == []


@full
def test_who_gives_up_waiting_does_not_end_it_and_the_interpreter_waits(scripts: Scripts, tmp_path: Path) -> None:
    source = f"""
        from monarch.actor import this_host
        from monarch.job.commands.run_command import exec_command

        future = exec_command(this_host(), ["cat {tmp_path}/fifo; echo done"])
        try:
            future.get(0.01)
        except TimeoutError:
            print("gave up", flush=True)
    """
    os.mkfifo(tmp_path / "fifo")
    process = scripts.start(source)
    assert process.stdout is not None
    assert process.stdout.readline() == "gave up\n"
    (tmp_path / "fifo").write_text("go on\n")
    assert process.stdout.read() == "go on\ndone\n"
    assert process.wait(TIMEOUT) == 0


@full
def test_a_killed_client_leaves_no_command(scripts: Scripts, tmp_path: Path, watch: type[Watch]) -> None:
    source = """
        from monarch.actor import this_host
        from monarch.job.commands.run_command import exec_command

        exec_command(this_host(), ["echo $$; exec sleep 1000"]).get()
    """
    process = scripts.start(source)
    assert process.stdout is not None
    left = watch([int(process.stdout.readline())])
    os.kill(process.pid, signal.SIGKILL)
    assert left.survivors(TIMEOUT) == {}
