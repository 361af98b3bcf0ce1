"""Surroundings that programs are started in: names that are not UTF-8, secrets, limits, missing folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.hosts import Hosts
from tests.support.patience import TIMEOUT
from tests.support.scripts import ROOT, Scripts
from tests.support.tiers import first_of, full

pytestmark = pytest.mark.procs
PATIENT = {"HYPERACTOR_HOST_SPAWN_READY_TIMEOUT": "1h"}  # until then nothing waits for a process that cannot come
root = pytest.mark.skipif(os.getuid() != 0, reason="namespaces are made by root")

LOOK = """
    import os, sys
    from monarch.actor import Actor, default_bootstrap_cmd, endpoint, this_host

    class A(Actor):
        @endpoint
        def look(self): return os.environb.get(b"CAF\\xe9"), os.getcwdb(), os.fsencode(sys.path[0])
"""


@full
@pytest.mark.parametrize("how", first_of(["None", "default_bootstrap_cmd()"]), ids=["forked", "executed"])
def test_environment_and_folder_need_not_be_utf8(scripts: Scripts, tmp_path: Path, how: str) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    done = scripts.run(
        LOOK
        + f"""
    look = this_host().spawn_procs({{"gpus": 2}}, bootstrap_command={how}).spawn("a", A).look
    print(set(look.call().get(timeout=300).values()))
    """,
        env={os.fsdecode(b"CAF\xe9"): os.fsdecode(b"\xff")},
        cwd=folder,
    )
    assert done.stdout.strip() == str({(b"\xff", folder, folder)})


def test_environment_of_other_hosts_need_not_be_utf8(hosts: Hosts) -> None:
    from monarch.actor import Actor, endpoint

    class A(Actor):
        @endpoint
        def look(self) -> list[bytes | None]:
            return [os.environb.get(name) for name in (b"PUSHED\xe9", b"SPAWNED\xe9")]

    host = hosts.attach(hosts.start(), env={os.fsdecode(b"PUSHED\xe9"): os.fsdecode(b"\xff")})
    procs = host.spawn_procs(env={os.fsdecode(b"SPAWNED\xe9"): os.fsdecode(b"\xfe")})
    assert procs.spawn("a", A).look.call_one().get(timeout=TIMEOUT) == [b"\xff", b"\xfe"]
    procs.stop().get(timeout=TIMEOUT)


@pytest.mark.parametrize("how", first_of(["None", "default_bootstrap_cmd()"]), ids=["forked", "executed"])
def test_processes_do_not_inherit_the_secret(scripts: Scripts, how: str) -> None:
    done = scripts.run(
        f"""
        import os, subprocess
        from monarch.actor import Actor, default_bootstrap_cmd, endpoint, this_host

        class A(Actor):
            @endpoint
            def look(self):
                everything = b""
                for pid in (os.getpid(), os.getppid()):  # and the host agent
                    everything += open(f"/proc/{{pid}}/environ", "rb").read()
                everything += subprocess.run(["env"], capture_output=True).stdout
                return os.environ.get("MONARCH_SECRET"), b"hush-hush-hush-hush" in everything

        print(os.environ["MONARCH_SECRET"])
        for env in (None, {{"MONARCH_SECRET": "asked for"}}):
            procs = this_host().spawn_procs(bootstrap_command={how}, env=env)
            print(*procs.spawn("a", A).look.call_one().get(timeout=300))
        """,
        env={"MONARCH_SECRET": "hush-hush-hush-hush"},
    )
    assert done.stdout.splitlines() == ["hush-hush-hush-hush", "None False", "asked for False"]


# --- limits


@full
@pytest.mark.parametrize("who", ["agent", "fork servers"])
def test_when_no_more_processes_may_be_made_it_is_said_and_later_spawns_work(tmp_path: Path, who: str) -> None:
    """The limit counts for others than root only."""
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("as root, this needs setpriv")
    program = tmp_path / "limited.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, resource, sys
            import monarch.actor
            from monarch.actor import Actor, SupervisionError, endpoint, this_host

            monarch.actor.unhandled_fault_hook = lambda failure: None

            class A(Actor):
                @endpoint
                def pid(self): return os.getpid()

            def limit(number=None):
                for pid in [agent] if sys.argv[1] == "agent" else servers:
                    hard = resource.prlimit(pid, resource.RLIMIT_NPROC)[1]
                    resource.prlimit(pid, resource.RLIMIT_NPROC, (hard if number is None else number, hard))

            class Parent(Actor):
                @endpoint
                def agent(self): return os.getppid(), os.getpid()

            agent, own = this_host().spawn_procs().spawn("p", Parent).agent.call_one().get(timeout=300)
            with open(f"/proc/{agent}/task/{agent}/children") as file:
                servers = [int(pid) for pid in file.read().split() if int(pid) != own]
            limit(1)
            refused = this_host().spawn_procs({"gpus": 4})
            try:
                refused.spawn("a", A).pid.call().get(timeout=300)
            except SupervisionError as exc:
                print(str(exc).replace("\\n", " "))
            limit()
            print(len(this_host().spawn_procs({"gpus": 4}).spawn("a", A).pid.call().get(timeout=300).values()))
            """
        )
    )
    as_nobody = ["setpriv", "--reuid=65534", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    done = subprocess.run(
        [*(as_nobody if os.getuid() == 0 else []), sys.executable, str(program), who],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MONARCH_RUNTIME_DIR": "/tmp", **PATIENT},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told, after = done.stdout.splitlines()
    assert "ulimit -u" in told and after == "4"


# --- containers


@full
@root
def test_programs_in_different_process_namespaces_share_a_folder(scripts: Scripts, tmp_path: Path) -> None:
    """None sees the processes of the others."""
    program = """
        import sys
        from monarch.actor import Actor, endpoint, this_host

        class A(Actor):
            @endpoint
            def one(self): return 1

        for _ in range(2):
            this_host().spawn_procs({"gpus": 2}).spawn("a", A).one.call().get(timeout=300)
            print("ready", flush=True)
            sys.stdin.readline()
        """
    contained = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MONARCH_RUNTIME_DIR": str(scripts.runtime)}
    running = [
        subprocess.Popen(
            [*contained, sys.executable, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        for _ in range(3)
    ]
    for each in running:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n", each.communicate(timeout=TIMEOUT)[1]
    for each in running:  # every folder is there still
        out, err = each.communicate("go on\nend\n", timeout=TIMEOUT)
        assert (out, each.returncode) == ("ready\n", 0), err
    assert list(scripts.runtime.rglob("*")) == []


@full
@root
@pytest.mark.parametrize("files", [5, 6, 7, 8])
def test_a_disk_without_room_for_more_files_is_named(scripts: Scripts, tmp_path: Path, files: int) -> None:
    """Room for so many, the folder itself among them: it ends at other steps of the start."""
    disk = tmp_path / "disk"
    disk.mkdir()
    program = "from monarch.actor import this_host; this_host().spawn_procs().initialized.get(300)"
    mount = f"mount -t tmpfs -o nr_inodes={files},mode=700 none {disk}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"{mount} && exec {sys.executable} -c '{program}'"],
        capture_output=True,
        text=True,
        timeout=4 * TIMEOUT,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MONARCH_RUNTIME_DIR": str(disk)},
    )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr and str(disk) in done.stderr, done.stderr
    assert "MONARCH_RUNTIME_DIR" in done.stderr and "FileNotFoundError" not in done.stderr, done.stderr


@full
@root
@pytest.mark.parametrize(
    "shm",
    first_of(["mount -t tmpfs -o size=4k none /dev/shm; head -c 4096 /dev/zero > /dev/shm/x", "umount -l /dev/shm"]),
    ids=["full", "missing"],
)
def test_shared_memory_may_be_missing_or_full(scripts: Scripts, tmp_path: Path, shm: str) -> None:
    file = tmp_path / "program.py"
    file.write_text(
        textwrap.dedent(
            """
            from monarch.actor import Actor, endpoint, this_host
            from monarch.rdma import RDMABuffer

            class A(Actor):
                @endpoint
                def length(self, data): return len(data)
                @endpoint
                def give(self):
                    self.data = bytearray(b"x" * 2**22)
                    self.buffer = RDMABuffer(memoryview(self.data))
                    return self.buffer
                @endpoint
                def take(self, buffer):
                    data = bytearray(2**22)
                    buffer.read_into(memoryview(data)).get(timeout=300)
                    return data.count(b"x")

            procs = this_host().spawn_procs({"gpus": 2})
            a = procs.spawn("a", A)
            print(a.length.call(b"x" * 2**22).get(timeout=300).values())
            print(a.slice(gpus=1).take.call_one(a.slice(gpus=0).give.call_one().get(timeout=300)).get(timeout=300))
            """
        )
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"({shm}) && exec {sys.executable} {file}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MONARCH_RUNTIME_DIR": str(scripts.runtime)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["[4194304, 4194304]", "4194304", ""]
