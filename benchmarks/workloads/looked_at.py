"""Workload of admin.py: a program with many actors, and who looks at it through its door."""

from __future__ import annotations

import subprocess
import sys
import time

import msgspec
from _workload import Params, Samples, main

from monarch._runtime.context import here
from monarch.actor import Actor, endpoint, shutdown_context, this_host
from monarch.admin.payloads import Nodes
from monarch.admin.program_tree import ProgramTree
from monarch.admin.programs import Program, program_at
from monarch.admin.query import ProgramQueries

# Asks without a pause until its stdin ends.
LOOKER = """
import select, sys
from monarch.admin.query import ProgramQueries
from monarch.admin.programs import program_at
look = ProgramQueries(program_at(sys.argv[1]))
while not select.select([sys.stdin], [], [], 0)[0]:
    look.tree()
"""


class Resident(Actor):
    @endpoint
    def ready(self) -> None: ...


def admin(params: Params) -> Samples:
    procs = this_host().spawn_procs({"procs": params["procs"]})
    meshes = [procs.spawn(f"residents{number}", Resident) for number in range(params["actors"] // params["procs"])]
    for mesh in meshes:
        mesh.ready.call().get()
    program = _this_program()
    look = ProgramQueries(program)
    samples: Samples = {"tree": [], "json": [], "call": [], "alone": []}
    for _ in range(params["warmup"]):
        look.tree()
    for _ in range(params["count"]):
        start = time.perf_counter()
        tree = look.tree()
        samples["tree"].append(time.perf_counter() - start)
        _as_json(tree)
        samples["json"].append(time.perf_counter() - start)
    one = meshes[0].slice(procs=0)
    samples["alone"] = _calls(one, params["calls"])
    with subprocess.Popen([sys.executable, "-c", LOOKER, program.folder], stdin=subprocess.PIPE) as looker:
        samples["call"] = _calls(one, params["calls"])
        assert looker.stdin is not None
        looker.stdin.close()
    shutdown_context().get()
    return samples


def _this_program() -> Program:
    program = program_at(here().address.removeprefix("unix:").rpartition("/")[0])
    assert program is not None
    return program


def _as_json(tree: ProgramTree) -> bytes:
    return msgspec.json.encode(Nodes(list(tree.nodes.values())))


def _calls(mesh: Resident, count: int) -> list[float]:
    found = []
    for _ in range(count):
        start = time.perf_counter()
        mesh.ready.call_one().get()
        found.append(time.perf_counter() - start)
    return found


if __name__ == "__main__":
    main({"admin": admin})
