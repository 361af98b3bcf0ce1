"""A proc begins when its intermediate is gone, however long that takes to end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from monarch.actor import Actor, endpoint, this_host
from tests.support.patience import TIMEOUT
from tests.support.tiers import full

# The intermediate closes its end of the gate and lives on until the proc has looked many times (ten seconds' worth of looks,
# of which none is slept).
PROGRAM = """
import os, time
from monarch._mesh.start.forkserver_protocol import wait_orphaned

gate_read, gate_write = os.pipe()
looked_read, looked_write = os.pipe()
said_read, said_write = os.pipe()
looks = 0

def look(seconds):
    global looks
    looks += 1
    if looks == 20_000:
        os.write(looked_write, b".")

if os.fork() == 0:
    mine = os.getpid()
    if os.fork() == 0:
        os.close(gate_write)
        time.sleep = look
        wait_orphaned(gate_read, mine)
        os.write(said_write, f"{looks >= 20_000} {os.getppid() != mine}".encode())
        os._exit(0)
    os.close(gate_write)
    os.read(looked_read, 1)
    os._exit(0)
os.close(gate_write)
os.close(said_write)
print(os.read(said_read, 100).decode())
"""


def test_it_waits_as_long_as_the_intermediate_lives() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT)
    assert (done.stdout, done.stderr) == ("True True\n", "")


class Child(Actor):
    def __init__(self) -> None:
        self.parent = os.getppid()

    @endpoint
    def parents(self) -> tuple[int, int]:
        return self.parent, os.getppid()


@full
@pytest.mark.procs
def test_an_actor_has_the_agent_for_its_parent_from_the_start() -> None:
    """The intermediate still forks the last ones when the first are up."""
    children = this_host().spawn_procs({"gpus": 24}).spawn("children", Child)
    assert len({pid for pair in children.parents.call().get(TIMEOUT).values() for pid in pair}) == 1
