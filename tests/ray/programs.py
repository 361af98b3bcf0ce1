"""A Ray cluster, and what programs of RayJob begin with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.scripts import ROOT

_TIMEOUT = 60

PROGRAM = """
    import json, os, sys, threading
    import ray
    from monarch.actor import Actor, SupervisionError, endpoint
    from monarch.job import Ended, Ready, SchedulerError, Waiting
    from monarch.job.ray import RayJob

    class Teller(Actor):
        @endpoint
        def host(self): return os.getppid()
        @endpoint
        def wait(self): threading.Event().wait()

    def ask(mesh):
        return list(mesh.spawn_procs({"gpus": 1}).spawn("tellers", Teller).host.call().get(300).values())

    def pids(job):
        job = job._holder
        handles = [job._handle(actor) for actor in job._actors()]
        return ray.get([handle.pids.remote() for handle in handles])

    def say(*what):
        print(json.dumps(what), flush=True)

    def until(kind, job):
        while not isinstance(poll := job._poll(), kind):  # each look waits for the actors' answers
            assert kind is Ended or isinstance(poll, Waiting), poll
        return poll
"""


def heard(program: Any) -> Any:
    """The next thing it says; Ray prints lines of its own in between."""
    while line := program.stdout.readline():
        if line.startswith("["):
            return json.loads(line)
    raise AssertionError(program.stderr.read())


@contextmanager
def running(environment: dict[str, str]) -> Iterator[tuple[str, str]]:
    """A cluster's address and the folder of its files, which is in a temporary folder as Ray's own is: others may look."""
    folder = tempfile.mkdtemp(prefix="mny")
    os.chmod(folder, 0o755)
    os.mkdir(f"{folder}/ray")  # where Ray says which cluster is the latest, and takes the folder to be there
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.ray.cluster", folder],
        cwd=ROOT,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder, "PYTHONPATH": _path()} | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert program.stdin is not None and program.stdout is not None
    try:
        lines = iter(program.stdout.readline, "")
        yield next(line.strip() for line in lines if line.strip().rpartition(":")[2].isdigit()), folder
    finally:
        program.stdin.close()
        program.wait(_TIMEOUT)
        program.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)


def _path() -> str:
    return os.pathsep.join(each for each in (str(ROOT), os.environ.get("PYTHONPATH", "")) if each)
