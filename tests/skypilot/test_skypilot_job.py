"""SkyPilotJob against a module with the calls of SkyPilot that it uses. Nodes run real workers."""

from __future__ import annotations

import importlib.util
import inspect
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import Actor, current_rank, endpoint
from monarch.job import Ended, Ready, SchedulerError, Waiting
from monarch.job.skypilot import SkyPilotJob
from tests.skypilot.fake_sky import Cloud, ClusterStatus, JobStatus, Resources, Task
from tests.support.tiers import full

TASK = ("set_file_mounts", "set_resources")


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    folder = Path(tempfile.mkdtemp(prefix="mns"))
    made = Cloud(folder)
    monkeypatch.setitem(sys.modules, "sky", made.module())
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)


def applied(**options: Any) -> SkyPilotJob:
    job = SkyPilotJob({"trainers": 1, "samplers": 1}, cluster_name="mine", **options)
    job.apply()
    return job


class Teller(Actor):
    @endpoint
    def rank(self) -> int:
        return current_rank().rank


@full
@pytest.mark.skipif(importlib.util.find_spec("sky") is None, reason="SkyPilot is not installed")
def test_the_stand_in_is_called_as_skypilot_is(cloud: Cloud) -> None:
    """By its names and their order; a program of its own, for SkyPilot imports much."""
    made = cloud.module()
    calls = {name: [*inspect.signature(call).parameters] for name, call in vars(made).items()}
    calls |= {f"Task.{name}": [*inspect.signature(getattr(Task, name)).parameters] for name in TASK}
    del calls["Resources"]  # whatever it takes is passed on to it
    program = f"""
import inspect, operator, sky
for name, names in {calls!r}.items():
    there = list(inspect.signature(operator.attrgetter(name)(sky)).parameters)
    missing = [each for each in names if each not in there]
    assert not missing and there[:1] == names[:1], (name, missing, there)
sky.Resources(accelerators="H100:8").to_yaml_config()
for kind, names in ((sky.ClusterStatus, {[*ClusterStatus.__members__]!r}), (sky.JobStatus, {[*JobStatus.__members__]!r})):
    assert set(names) <= set(kind.__members__), kind
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@full
def test_from_a_launch_to_actors_and_back(cloud: Cloud) -> None:
    job = SkyPilotJob({"trainers": 2}, {"accelerators": "H100:8"}, "mine", python_exe=sys.executable)
    state = job.state(cached_path=None)
    procs = state.trainers.spawn_procs({"gpus": 1})
    assert sorted(procs.spawn("tellers", Teller).rank.call().get(300).values()) == [0, 1]
    job.kill()
    assert cloud.nodes == []
    job.kill()


def test_what_is_launched(cloud: Cloud) -> None:
    job = applied(idle_minutes_to_autostop=10, setup_commands=["a", "b"], workdir=".", file_mounts={"/data": "~/data"})
    task = cloud.task
    assert task is not None and job._launch is not None
    assert (task.name, task.num_nodes, task.setup, task.workdir) == ("monarch-workers", 2, "a\nb", ".")
    assert task.run == "exec python -u -P -m monarch worker --address 'tcp://*:22222'"
    assert task.file_mounts == {"/data": "~/data"}
    assert task.secrets == {"MONARCH_SECRET": job._launch.secret}
    assert task.envs == {"MONARCH_WORKER_LEASE": job._launch.environment()["MONARCH_WORKER_LEASE"]}
    assert cloud.options == {"idle_minutes_to_autostop": 10, "down": True}
    poll = job._poll()
    addresses = [f"tcp://{address}:22222" for address, _ in cloud.nodes]
    assert poll == Ready({"trainers": addresses[:1], "samplers": addresses[1:]})
    job.kill()


def test_each_step_says_what_is_awaited(cloud: Cloud) -> None:
    cloud.request_status = "RUNNING"
    job = applied()
    assert job._poll() == Waiting("SkyPilot launches cluster mine: Provisioning on AWS")
    cloud.request_status, cloud.cluster_status = "SUCCEEDED", ClusterStatus.INIT
    assert job._poll() == Waiting("cluster mine is in state INIT")
    cloud.cluster_status, cloud.job_status = ClusterStatus.UP, JobStatus.SETTING_UP
    assert job._poll() == Waiting("the nodes of cluster mine are being set up: SETTING_UP")
    cloud.job_status = JobStatus.FAILED_SETUP
    assert job._poll() == Ended("the workers on cluster mine ended: FAILED_SETUP; see `sky logs mine`")
    cloud.cluster_status = ClusterStatus.STOPPED
    assert job._poll() == Ended("cluster mine is in state STOPPED")
    cloud.close()
    assert job._poll() == Ended("cluster mine is gone: SkyPilot or somebody has taken it down")
    job.kill()


def test_a_launch_that_fails_has_skypilots_words(cloud: Cloud) -> None:
    cloud.error = "Failed to provision all possible launchable resources:\nH100:8"
    job = SkyPilotJob({"trainers": 1}, cluster_name="mine")
    words = "SkyPilot could not launch cluster mine: Failed to provision all possible launchable resources: H100:8"
    with pytest.raises(SchedulerError, match=words):
        job.state(cached_path=None)
    assert not job.active
    assert cloud.cancelled == ["launch"]


def test_arguments_that_skypilot_refuses(cloud: Cloud) -> None:
    with pytest.raises(SchedulerError, match=r"does not launch cluster mine: .*unexpected keyword argument 'gpus'"):
        applied(resources={"gpus": 8})
    with pytest.raises(RuntimeError, match="SkyPilotJob cannot run batch-mode scripts"):
        SkyPilotJob({"trainers": 1}).apply("train.py")
    for meshes in ({}, {"a": 0}, {"": 1}):
        with pytest.raises(ValueError, match="mesh"):
            SkyPilotJob(meshes)


def test_what_a_kept_job_can_run(cloud: Cloud) -> None:
    job = applied(resources=Resources("H100:8"))
    same = {"trainers": 1, "samplers": 1}
    assert job.can_run(SkyPilotJob(same, Resources("H100:8")))
    assert not job.can_run(SkyPilotJob(same, Resources("A100:8")))
    assert not job.can_run(SkyPilotJob({"samplers": 1, "trainers": 1}, Resources("H100:8")))
    assert not job.can_run(SkyPilotJob(same, Resources("H100:8"), monarch_port=1))
    cloud.cluster_status = ClusterStatus.STOPPED
    assert not job.can_run(SkyPilotJob(same, Resources("H100:8")))
    job.kill()


def test_without_skypilot_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sky", None)
    monkeypatch.setenv("SKYPILOT_IN_CLUSTER_CONTEXT_NAME", "in-cluster")
    with pytest.raises(RuntimeError, match=r"pip install 'pymonarch\[skypilot\]'"):
        SkyPilotJob({"trainers": 1}).apply()
