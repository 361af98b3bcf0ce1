"""`monarch run` on hosts with networks of their own: rank 0 reads the standard input of the command, which is elsewhere."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from tests.netns.lab import NAMESPACES, ROOT, Host, Lab
from tests.support.terminal import Terminal
from tests.support.tiers import full

pytestmark = pytest.mark.netns

SECONDS = 90.0
JOB = """
from monarch.job import LoginJob

class NamespaceJob(LoginJob):
    def _login(self, host, command):
        return ["nsenter", "--net=" + PLACES[host], "--", "sh", "-c", command]

PLACES = {places!r}
job = NamespaceJob({python!r})
job.add_mesh("hosts", list(PLACES))
"""
TRAIN = """
import hashlib, os, sys
rank, what = int(os.environ["RANK"]), sys.argv[1]
if what == "data":
    data = sys.stdin.buffer.read()
    print(rank, len(data), hashlib.sha256(data).hexdigest(), flush=True)
elif what == "wait" and rank == 0:
    print(input(), flush=True)
    input()
elif what == "talk" and rank == 0:
    secret = 40 + 2
    breakpoint()
"""


def words(client: Host, *more: str) -> list[str]:
    return client.python("-m", "monarch", "run", *more)


@pytest.fixture
def client(lab: Lab) -> Iterator[Host]:
    """The host of the command, with a job on the two others."""
    client, *others = lab.hosts
    places = {host.address: str(NAMESPACES / host.namespace) for host in others}
    (client.folder / "cluster.py").write_text(JOB.format(places=places, python=sys.executable))
    (client.folder / "train.py").write_text(TRAIN)
    yield client
    client.run(client.python("-m", "monarch", "kill", "job_cluster.job"), timeout=SECONDS)


@full
def test_rank_0_reads_the_input_of_a_command_elsewhere(client: Host) -> None:
    run = words(client, "--job", "cluster.job", "train.py")
    data = "".join(f"{number}\n" for number in range(200_000))
    done = client.run([*run, "data"], input=data, timeout=SECONDS)
    nothing = hashlib.sha256().hexdigest()
    expected = [f"0 {len(data)} {hashlib.sha256(data.encode()).hexdigest()}", f"1 0 {nothing}"]
    assert sorted(done.stdout.splitlines()) == expected
    # Who waits for input is ended by Ctrl-C.
    waiting = client.popen([*run, "wait"])
    assert waiting.stdin is not None and waiting.stdout is not None
    waiting.stdin.write("one\n")
    waiting.stdin.flush()
    assert waiting.stdout.readline() == "one\n"
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(SECONDS) == 130
    # A debugger can be talked to; and the terminal's input does not end, but is not waited for.
    path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    env = os.environ | {"PYTHONPATH": path, "MONARCH_RUNTIME_DIR": str(client.folder)}
    terminal = Terminal(
        ["nsenter", f"--net={NAMESPACES / client.namespace}", "--", *run, "talk"], env, str(client.folder)
    )
    try:
        terminal.until(r"\(Pdb\) ")
        terminal.type("p secret\n")
        terminal.until("^42")
        terminal.type("c\n")
        assert terminal.process.wait(SECONDS) == 0
    finally:
        terminal.close()
