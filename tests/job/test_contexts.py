"""Contexts in `.monarch`, the current job, and jobs that a project's file describes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from monarch.job import contexts, job_load, load_current_job, project_file, set_current_job
from tests.job.fake_scheduler import FakeJob, Scheduler


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(project_file, "_states", {})
    Scheduler.all = {"one": Scheduler()}
    yield tmp_path
    for name in ("my_jobs",):
        sys.modules.pop(name, None)


def test_contexts_are_made_chosen_and_removed(folder: Path) -> None:
    assert (contexts.names(), contexts.active()) == ([], "default")
    FakeJob("one").state()  # a plain file, from before there were contexts
    contexts.create("wide")
    assert (contexts.active(), contexts.names()) == ("wide", ["default", "wide"])
    assert os.readlink(".monarch/job_state.pkl") == "wide/state.pkl"
    assert job_load(".monarch/default/state.pkl").active
    with pytest.raises(FileExistsError, match="monarch context use wide"):
        contexts.create("wide")
    contexts.use("default")
    FakeJob("one").state()
    assert Scheduler.all["one"].asked.count("submit") == 1
    contexts.remove("default")
    assert (Scheduler.all["one"].asked[-1], contexts.active()) == ("cancel", "default")
    contexts.use("wide")
    contexts.remove("wide")
    assert (contexts.active(), contexts.names()) == ("default", ["default"])
    with pytest.raises(FileNotFoundError, match="there is no context 'wide'; there are: default"):
        contexts.remove("wide")
    with pytest.raises(ValueError, match=r"'\.\./up' is not a name of a context"):
        contexts.create("../up")


def test_the_current_job_is_a_name_in_a_module(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"monarch apply MODULE\.ATTRIBUTE"):
        load_current_job()
    (folder / "my_jobs.py").write_text(
        "from tests.job.fake_scheduler import FakeJob\njob = FakeJob('one')\nother = 3\n"
    )
    set_current_job("my_jobs.job")
    assert isinstance(load_current_job(), FakeJob)
    assert (folder / ".monarch/default/spec").read_text() == "my_jobs.job\n"
    for spec, error, text in [
        ("my_jobs", ValueError, r"MODULE\.ATTRIBUTE"),
        ("my_jobs.missing", AttributeError, "has no 'missing'"),
        ("my_jobs.other", TypeError, "is int, and a job is wanted"),
        ("no_module_of_that_name.job", ImportError, "no_module_of_that_name"),
    ]:
        with pytest.raises(error, match=text):
            set_current_job(spec)


# --- a project's file

FILE = """
[tool.monarch]
default-job = "laptop"

[tool.monarch.jobs.laptop]
class = "ProcessJob"
meshes = { trainers = 2 }

[tool.monarch.jobs.cluster]
class = "tests.job.fake_scheduler.FakeJob"
name = "one"
"""


def parsed(text: str, path: str = "/x/pyproject.toml") -> Any:
    return project_file.parse(text, path)


def test_the_environment_picks_a_job() -> None:
    project = parsed(FILE)
    assert project_file.pick(project, {}).name == "laptop"
    picked = project_file.pick(project, {"MONARCH_JOB": "cluster"})
    assert (picked.kind, picked.arguments) == ("tests.job.fake_scheduler.FakeJob", {"name": "one"})
    with pytest.raises(ValueError, match=r"MONARCH_JOB is 'huge', and /x/pyproject\.toml describes laptop, cluster"):
        project_file.pick(project, {"MONARCH_JOB": "huge"})
    only = parsed("[jobs.here]\nclass = 'LocalJob'\n", "/x/monarch.toml")
    assert project_file.pick(only, {}).name == "here"
    with pytest.raises(ValueError, match="say which with MONARCH_JOB=NAME"):
        project_file.pick(parsed("[jobs.a]\nclass='LocalJob'\n[jobs.b]\nclass='LocalJob'", "/x/monarch.toml"), {})


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[jobs", "monarch.toml is not TOML"),
        ("jobs = 3", "table of tables"),
        ("[jobs.a]\nmeshes = {}", "job a says no class; it is one of LocalJob, ProcessJob"),
        ("[jobs.a]\nclass = 'SlurmJobb'", "did you mean SlurmJob"),
        ("default-job = 'b'\n[jobs.a]\nclass = 'LocalJob'", "default-job is 'b'"),
    ],
    ids=["syntax", "number", "no-class", "misspelt", "default"],
)
def test_what_the_file_may_not_say(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parsed(text, "/x/monarch.toml")


def test_arguments_that_a_class_does_not_take_name_the_file() -> None:
    project = parsed("[jobs.a]\nclass = 'LocalJob'\npartition = 'gpu'", "/x/monarch.toml")
    with pytest.raises(ValueError, match=r"/x/monarch\.toml: job a: .*partition"):
        project_file.build(project.jobs["a"], project.path)


def test_hosts_come_from_the_nearest_file_above(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "pyproject.toml").write_text(FILE)
    deep = folder / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "pyproject.toml").write_text("[project]\nname = 'silent'\n")
    monkeypatch.chdir(deep)
    monkeypatch.setenv("MONARCH_JOB", "cluster")
    mesh: Any = project_file.hosts_from_config("hosts")
    assert mesh is project_file.hosts_from_config("hosts")
    assert Scheduler.all["one"].asked.count("submit") == 1
    assert (folder / ".monarch/job_cluster/state.pkl").exists()
    with pytest.raises(AttributeError, match=r"'trainers' is not a valid host mesh name\. Available names: hosts"):
        project_file.hosts_from_config("trainers")
