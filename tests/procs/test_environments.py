"""Surroundings that programs are started in: names that are not UTF-8, secrets, limits, missing folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.hosts import Hosts
from tests.support.scripts import Scripts
from tests.support.tiers import first_of

pytestmark = pytest.mark.procs
TIMEOUT = 30

LOOK = """
    import os, sys
    from monarch.actor import Actor, default_bootstrap_cmd, endpoint, this_host

    class A(Actor):
        @endpoint
        def look(self): return os.environb.get(b"CAF\\xe9"), os.getcwdb(), os.fsencode(sys.path[0])
"""


@pytest.mark.parametrize("how", first_of(["None", "default_bootstrap_cmd()"]), ids=["forked", "executed"])
def test_environment_and_folder_need_not_be_utf8(scripts: Scripts, tmp_path: Path, how: str) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    done = scripts.run(
        LOOK
        + f"""
    look = this_host().spawn_procs({{"gpus": 2}}, bootstrap_command={how}).spawn("a", A).look
    print(set(look.call().get(timeout=30).values()))
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
            print(*procs.spawn("a", A).look.call_one().get(timeout=30))
        """,
        env={"MONARCH_SECRET": "hush-hush-hush-hush"},
    )
    assert done.stdout.splitlines() == ["hush-hush-hush-hush", "None False", "asked for False"]
