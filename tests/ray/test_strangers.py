"""Another user of a machine looks for the secret of a RayJob there, and is kept out of Ray."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.ray.programs import PROGRAM, heard, running
from tests.support.users import as_stranger, needs_root

pytestmark = [pytest.mark.ray, needs_root]

JOB = (
    PROGRAM
    + """
    job = RayJob({"trainers": 1})
    hosts = job.state(cached_path=None).trainers
    ask(hosts)
    job = job._holder
    say(job._launch.secret, *(ray.get(job._handle(actor).address.remote()) for actor in job._actors()))
    sys.stdin.readline()
    job.kill()
    """
)


def found(secret: bytes, folders: list[str]) -> tuple[list[str], int]:
    """Returns where it is, and how many places were looked into."""
    pids = [each for each in os.listdir("/proc") if each.isdigit()]
    places = [f"/proc/{pid}/{name}" for pid in pids for name in ("cmdline", "environ", "mem", "fd/0")]
    for folder in folders:
        places += [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]
    there, looked = [], 0
    for place in places:
        try:
            if place.startswith("/proc") or Path(place).is_file():
                data = Path(place).read_bytes()
                looked += 1
                there += [place] * (secret in data)
        except OSError:
            continue
    return there, looked


def answered(address: str) -> bytes:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    with socket.socket() as connection:
        connection.settimeout(30)
        connection.connect((host, int(port)))
        connection.sendall(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n" + bytes(500))
        try:
            return connection.recv(100)
        except ConnectionResetError:
            return b""


def test_another_user_finds_the_secret_nowhere(scripts: Any, ray_cluster: tuple[str, str]) -> None:
    address, folder = ray_cluster
    program = scripts.start(JOB, env={"RAY_ADDRESS": address, "RAY_USAGE_STATS_ENABLED": "0"})
    secret, worker = heard(program)
    there, looked = as_stranger(lambda: found(secret.encode(), [folder, "/dev/shm"]))
    assert there == []
    assert looked > 50  # others read Ray's logs
    assert as_stranger(lambda: answered(worker)) == b""
    _, err = program.communicate("on\n", timeout=60)
    assert program.returncode == 0, err


SUBMITTED = (
    PROGRAM
    + """
    try:
        job = RayJob({"trainers": 1})
        say(len(ask(job.state(cached_path=None).trainers)))
        job.kill()
    except SchedulerError as error:
        say(str(error))
    """
)


def test_a_cluster_that_asks_for_a_token_keeps_out_who_has_none(scripts: Any, tmp_path: Path) -> None:
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4, "RAY_USAGE_STATS_ENABLED": "0"}
    with running(token) as (address, _):
        outcomes = []
        for told in ({}, {"RAY_AUTH_TOKEN": "guessed" * 9}, {"RAY_AUTH_TOKEN": "", "HOME": str(tmp_path)}):
            done = scripts.run(SUBMITTED, env=token | {"RAY_ADDRESS": address} | told)
            outcomes += [line for line in done.stdout.splitlines() if line.startswith("[")]
    let_in, *refused = outcomes
    assert let_in == "[1]"
    assert len(refused) == 2
    for line in refused:
        assert "cannot be reached: " in line
        assert "one with RAY_AUTH_MODE=token wants its token of this program too" in line
