"""The job that a verb is about: that of the active context, else the one that the project's file describes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch._errors import NotFoundError

if TYPE_CHECKING:
    from monarch.actor import HostMesh
    from monarch.job import JobState, JobTrait


class CurrentJob:
    """A job, the file that keeps it while it runs, and what people call it."""

    def __init__(self, job: JobTrait, path: str, name: str) -> None:
        self.job = job
        self.path = path
        self.name = name

    def state(self) -> JobState:
        """Its hosts; starts it when it does not run."""
        return self.job.state(cached_path=self.path)

    def kill(self) -> None:
        """Gives its hosts back, and forgets it."""
        from monarch.job import cache, job_load

        job = self.job
        if not job.active:  # it could not be reached, and may run all the same
            try:
                job = job_load(self.path)
            except FileNotFoundError:
                return
        job.kill()
        cache.remove(self.path)


def current_place() -> tuple[str, str]:
    """Returns the file that keeps the job while it runs, and what people call it; imports nothing. FileNotFoundError, which
    says how to name a job, when there is none."""
    from monarch.job import DEFAULT_JOB_PATH, contexts

    try:
        contexts.current_spec()
    except FileNotFoundError as error:
        _, path, name = _described(_project(error), os.environ)
        return path, name
    return DEFAULT_JOB_PATH, f"the job of context {contexts.active()!r}"


def current_job() -> CurrentJob:
    """FileNotFoundError, which says how to name one, when there is none."""
    from monarch.job import DEFAULT_JOB_PATH, contexts

    try:
        spec = contexts.current_spec()
    except FileNotFoundError as error:
        return of_project(_project(error), os.environ)
    return CurrentJob(contexts.load(spec), DEFAULT_JOB_PATH, f"the job of context {contexts.active()!r}")


def _project(error: FileNotFoundError) -> Any:
    from monarch.job import project_file

    project = project_file.find(Path.cwd())
    if project is None:
        raise error from None
    return project


def of_project(project: Any, environment: Mapping[str, str]) -> CurrentJob:
    """The job that the project's file describes and the environment picks."""
    from monarch.job import project_file

    described, path, name = _described(project, environment)
    return CurrentJob(project_file.build(described, project.path), path, name)


def _described(project: Any, environment: Mapping[str, str]) -> tuple[Any, str, str]:
    from monarch.job import project_file
    from monarch.job.names import FOLDER

    described = project_file.pick(project, environment)
    path = Path(project.path).parent / FOLDER / f"job_{described.name}" / "state.pkl"
    return described, str(path), f"job {described.name} of {project.path}"


def named_job(spec: str) -> CurrentJob:
    """MODULE.ATTRIBUTE, or the name of a job in the project's file. A file of its own keeps it, so the context's job
    stays as it is. NotFoundError when it is neither."""
    from monarch.job import contexts, project_file
    from monarch.job.names import FOLDER

    if "." in spec:
        return CurrentJob(contexts.load(spec), str(Path(FOLDER, f"job_{spec}", "state.pkl")), f"job {spec}")
    project = project_file.find(Path.cwd())
    if project is None or spec not in project.jobs:
        known = (
            f"{project.path} describes {', '.join(project.jobs)}"
            if project
            else "no monarch.toml or pyproject.toml has jobs"
        )
        raise NotFoundError(f"{spec!r} is neither MODULE.ATTRIBUTE nor a job of this project: {known}")
    return of_project(project, {project_file.PICK: spec})


def mesh_of(state: JobState, name: str | None) -> HostMesh:
    """The mesh of this name; without one the first that the job declares."""
    hosts = state._hosts
    if name is None:
        return next(iter(hosts.values()))
    if name not in hosts:
        raise NotFoundError(f"Mesh {name!r} not found. Available: {list(hosts)}")
    return hosts[name]


# --- arguments that several verbs take


def add_environment(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-e", "--env", action="append", default=[], metavar="KEY=VALUE", help="a variable; may be repeated"
    )
    parser.add_argument("--workdir", metavar="DIR", help="working directory there (default: this one, if it is there)")


def add_kill(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kill", action="store_true", help="kill the job afterwards")


def environment(pairs: Sequence[str]) -> dict[str, str]:
    """Reads NAME=VALUE words; ValueError for one without `=`."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"-e takes KEY=VALUE, got {pair!r}")
        found[name] = value
    return found


def point(text: str) -> dict[str, int]:
    """Reads `hosts=1,gpu=0`; ValueError for anything else."""
    found = {}
    for part in text.split(","):
        label, equals, number = part.partition("=")
        if not equals or not label or not number.isdecimal():
            raise ValueError(f"a place is DIM=N,DIM=N, as in hosts=1; got {text!r}")
        found[label] = int(number)
    return found


def killing(current: CurrentJob, kill: bool, act: Callable[[], int]) -> int:
    """`act()`, and with `kill` the end of the job afterwards, whatever comes of it."""
    try:
        return act()
    finally:
        if kill:
            current.kill()
