"""RayJob on a real Ray cluster of two nodes."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.ray.programs import PROGRAM, heard
from tests.support.patience import TIMEOUT
from tests.support.processes import Watch, kill

pytestmark = pytest.mark.ray


def told(done: subprocess.CompletedProcess[str]) -> list[Any]:
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


LIFE = (
    PROGRAM
    + """
    job = RayJob({"trainers": 2})
    state = job.state()
    say(ask(state.trainers), pids(job))
    state.trainers.stop().get(300)
"""
)
NEXT = (
    PROGRAM
    + """
    job = RayJob({"trainers": 2})
    state = job.state()
    say(ask(state.trainers), pids(job))
    job.kill()
    say(ray.util.list_named_actors(all_namespaces=True))
"""
)


def test_hosts_outlive_a_program_and_end_with_the_job(
    scripts: Any, environment: dict[str, str], watch: type[Watch]
) -> None:
    ((hosts, pids),) = told(scripts.run(LIFE, env=environment))
    assert len({tuple(pair) for pair in pids}) == 2
    workers = watch([worker for _, worker in pids])
    done = scripts.run(NEXT, env=environment)
    assert "Connecting to cached job" in done.stderr
    (again, same), (left,) = told(done)
    assert (again, same) == (hosts, pids)
    assert left == []
    assert workers.survivors(TIMEOUT) == {}


FAILING = (
    PROGRAM
    + """
    job = RayJob({"trainers": 2})
    job.apply()
    for _ in range(3):
        poll = until(Ready, job)
        say(poll.workers["trainers"], pids(job))
        sys.stdin.readline()
    job.kill()
"""
)


def test_a_host_that_fails_is_started_again(scripts: Any, environment: dict[str, str], watch: type[Watch]) -> None:
    program = scripts.start(FAILING, env=environment)
    before, pids = heard(program)
    (actor, worker), others = pids
    running = watch([worker])
    kill(actor)  # the Ray actor
    assert running.survivors(TIMEOUT) == {}
    program.stdin.write("on\n")
    program.stdin.flush()
    after, now = heard(program)
    assert after[0] != before[0] and after[1] == before[1]
    assert now[1] == others

    running = watch([now[0][0]])
    kill(now[0][1])  # the worker
    assert running.survivors(TIMEOUT) == {}
    program.stdin.write("on\n")
    program.stdin.flush()
    last, _ = heard(program)
    assert last[0] not in (before[0], after[0]) and last[1] == before[1]
    _, err = program.communicate("on\n", timeout=TIMEOUT)
    assert program.returncode == 0, err


REPLACED = (
    PROGRAM
    + """
    job = RayJob({"trainers": 2})
    hosts = job.state(cached_path=None).trainers
    tellers = hosts.slice(hosts=0).spawn_procs({"gpus": 1}).spawn("tellers", Teller)
    tellers.host.call_one().get(300)
    waits = tellers.wait.call_one()
    say(pids(job))
    try:
        waits.get(300)
    except SupervisionError:
        pass
    say(hosts.replace(failed=True).get(300), len(ask(hosts)))
    job.kill()
"""
)


def test_a_host_that_ray_starts_again_takes_its_old_place(scripts: Any, environment: dict[str, str]) -> None:
    program = scripts.start(REPLACED, env=environment)
    ((actor, _), _) = heard(program)[0]
    kill(actor)
    assert heard(program) == [[0], 2]
    _, err = program.communicate(timeout=TIMEOUT)
    assert program.returncode == 0, err


TOO_MANY = (
    PROGRAM
    + """
    job = RayJob({"trainers": 3}, start_timeout=0.1)
    try:
        job.state(cached_path=None)
    except SchedulerError as error:
        say(str(error))
    groups = ray.util.placement_group_table().values()
    say(ray.util.list_named_actors(all_namespaces=True), [group["state"] for group in groups])
"""
)


def test_more_hosts_than_nodes_are_told_and_nothing_is_left(scripts: Any, environment: dict[str, str]) -> None:
    (why,), (actors, groups) = told(scripts.run(TOO_MANY, env=environment))
    assert "3 hosts with CPU 1 each are needed on different nodes; the cluster has 2 node(s), free: CPU " in why
    assert actors == [] and set(groups) <= {"REMOVED"}


LEASE = (
    PROGRAM
    + """
    job = RayJob({"trainers": 2}, strategy="SPREAD")
    job.apply()
    until(Ready, job)
    say("ready")
    say(until(Ended, job).why)
    while job._left() or ray.util.list_named_actors(all_namespaces=True):
        pass
    say(ray.util.list_named_actors(all_namespaces=True))
    job.kill()
"""
)


def test_hosts_whose_lease_is_over_give_everything_back(scripts: Any, environment: dict[str, str]) -> None:
    ready, (why,), (left,) = told(scripts.run(LEASE, env=environment | {"MONARCH_JOB_LEASE": "3s"}))
    assert ready == ["ready"]
    assert "has ended" in why or "is gone" in why
    assert left == []
