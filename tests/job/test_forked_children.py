"""A forked child of a program with hosts: it ends, and what its parent has goes on."""

from __future__ import annotations

import pytest

from tests.support.scripts import Scripts
from tests.support.tiers import full

pytestmark = [full, pytest.mark.procs]

PROGRAM = """
    import os, socket, sys, tempfile
    from monarch.actor import Actor, endpoint
    from monarch.gather_mount import gather_mount
    from monarch.job import hosts_from_config
    from monarch.job.ssh.job import LoginJob

    class HereJob(LoginJob):
        def _login(self, host, command):
            return ["sh", "-c", command]

    class A(Actor):
        @endpoint
        def echo(self, value): return value

    def check():
        for actor in actors:
            assert set(actor.echo.call(1).get(timeout=300).values()) == {1}
        mount.refresh()

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    job = HereJob(sys.executable, port)
    job.add_mesh("far", ["127.0.0.1"])
    meshes = [job.state(None).far, hosts_from_config("two")]
    actors = [mesh.spawn_procs().spawn("a", A) for mesh in meshes]
    with gather_mount(meshes[1], tempfile.mkdtemp(), tempfile.mkdtemp(), "mirror") as mount:
        check()
        child = os.fork()
        if child == 0:
            END
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == STATUS
        check()
    job.kill()
    print("the parent is well")
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [("sys.exit(3)", 3), ("raise ValueError", 1), ("os._exit(4)", 4)],
    ids=["exits", "raises", "ends-at-once"],
)
def test_hosts_and_mounts_are_there_when_a_forked_child_has_ended(scripts: Scripts, end: str, status: int) -> None:
    done = scripts.run(PROGRAM.replace("END", end).replace("STATUS", str(status)))
    assert done.stdout.split("\n")[-2] == "the parent is well"
