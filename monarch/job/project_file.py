"""Jobs that a project's file describes, so that the same script runs here and on a cluster.

[tool.monarch]                      # pyproject.toml; in monarch.toml: no [tool.monarch] around it
default-job = "laptop"

[tool.monarch.jobs.laptop]
class = "ProcessJob"
meshes = { trainers = 2 }

[tool.monarch.jobs.cluster]
class = "SlurmJob"
meshes = { trainers = 16 }
partition = "h100"
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from monarch._linux import private_files
from monarch.actor import HostMesh, two_local_hosts
from monarch.job import cache, modules
from monarch.job.job_state import JobState
from monarch.job.job_trait import JobTrait
from monarch.job.names import FOLDER
from monarch.job.progress import job_logger
from monarch.job.schedulers import CLASSES

PICK = "MONARCH_JOB"
FILES = ("monarch.toml", "pyproject.toml")
_NAME = re.compile(r"[A-Za-z0-9_.-]+\Z")  # it is part of a folder's name, and of a command that people are told
_LOOKED_AT = 1 << 20  # bytes of a file that is not to be trusted


class Described(msgspec.Struct, frozen=True):
    """A job as the file has it: its name, its class, the arguments of that, calls of `add_mesh`, and spares by mesh."""

    name: str
    kind: str
    arguments: dict[str, Any]
    add_mesh: list[dict[str, Any]]
    spares: dict[str, int]


class ProjectFile(msgspec.Struct, frozen=True):
    """The jobs that a project's file describes."""

    path: str
    jobs: dict[str, Described]
    default: str | None


def parse(text: str, path: str) -> ProjectFile | None:
    """Returns what the text of the file `path` says of jobs; None when it says nothing. ValueError for what it may not
    say."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ValueError(f"{path} is not TOML: {exc}") from None
    if Path(path).name == "pyproject.toml":
        content = content.get("tool", {}).get("monarch", {})
    jobs = content.get("jobs")
    if jobs is None:
        return None
    if not isinstance(jobs, dict) or not all(isinstance(job, dict) for job in jobs.values()):
        raise ValueError(f"{path}: `jobs` is a table of tables, one a job")
    default = content.get("default-job")
    if default is not None and default not in jobs:
        raise ValueError(f"{path}: default-job is {default!r}, and the jobs are {', '.join(jobs)}")
    return ProjectFile(path, {name: _described(name, job, path) for name, job in jobs.items()}, default)


def _described(name: str, job: dict[str, Any], path: str) -> Described:
    if not _NAME.match(name):
        raise ValueError(f"{path}: {name!r} is not a name of a job: letters, digits, _, . and - are")
    arguments = dict(job)
    kind = arguments.pop("class", None)
    if not isinstance(kind, str):
        raise ValueError(f"{path}: job {name} says no class; it is one of {', '.join(CLASSES)}, or MODULE.CLASS")
    if "." not in kind and kind not in CLASSES:
        close = difflib.get_close_matches(kind, CLASSES, 1)
        raise ValueError(
            f"{path}: job {name} has class {kind!r}, and it is one of {', '.join(CLASSES)}, or MODULE.CLASS"
            + (f"; did you mean {close[0]}?" if close else "")
        )
    added = arguments.pop("add-mesh", [])
    if not isinstance(added, list) or not all(isinstance(one, dict) for one in added):
        raise ValueError(f"{path}: add-mesh of job {name} is an array of tables, the arguments of add_mesh")
    spares = arguments.pop("spares", {})
    if not isinstance(spares, dict):
        raise ValueError(f"{path}: spares of job {name} is a table, of numbers of hosts by mesh")
    return Described(name, kind, {key.replace("-", "_"): value for key, value in arguments.items()},
                     [{key.replace("-", "_"): value for key, value in one.items()} for one in added], spares)  # fmt: skip


def pick(project: ProjectFile, environment: Mapping[str, str]) -> Described:
    """The job that MONARCH_JOB names, else the default, else the only one. ValueError when there is none such."""
    wanted = environment.get(PICK) or project.default
    if wanted is None and len(project.jobs) == 1:
        wanted = next(iter(project.jobs))
    if wanted is None:
        raise ValueError(
            f"{project.path} describes the jobs {', '.join(project.jobs) or 'none'}; say which with {PICK}=NAME, or with "
            f"default-job in the file"
        )
    if wanted not in project.jobs:
        raise ValueError(f"{PICK} is {wanted!r}, and {project.path} describes {', '.join(project.jobs)}")
    return project.jobs[wanted]


def find(folder: Path) -> ProjectFile | None:
    """The nearest file that speaks of jobs, in `folder` or above it, up to the first folder of somebody else. A file that
    somebody else could have written is UnsafeJobFileError; one that a stranger has put into a folder for everybody, such as
    /tmp, above `folder` is passed over with a warning."""
    for where in list(private_files.folders_upward(folder)) or [str(folder)]:
        for name in FILES:
            path = os.path.join(where, name)
            try:
                text = cache.read_named(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except cache.UnsafeJobFileError as exc:
                if not _speaks(path):
                    continue
                if where == str(folder) or not _is_strewn(path):
                    raise
                job_logger().warning("%s", exc)
                continue
            except PermissionError:
                continue
            found = parse(text, path)
            if found is not None:
                return found
    return None


def _speaks(path: str) -> bool:
    """True if it seems to be about jobs; what it says of them is not believed."""
    if os.path.basename(path) == FILES[0]:
        return True
    try:
        with os.fdopen(private_files.open_regular(path), "rb") as file:
            return b"monarch" in file.read(_LOOKED_AT)
    except OSError:
        return False


def _is_strewn(path: str) -> bool:
    """True if a stranger could put this file there without the help of whose folder it is."""
    try:
        folder, entry = os.stat(os.path.dirname(path)), os.lstat(path)
    except OSError:
        return False
    return bool(folder.st_mode & private_files.OTHERS_WRITE) and entry.st_uid not in (os.geteuid(), 0)


def build(described: Described, path: str) -> JobTrait:
    """The job as an object. ValueError that names the file for what is no class of jobs, which is not called, and for
    arguments that the class does not take."""
    module, _, name = described.kind.rpartition(".")
    module = module or CLASSES[name]
    try:
        kind = getattr(modules.load(module), name)
    except AttributeError:
        raise ValueError(f"{path}: job {described.name}: module {module} has no {name}") from None
    if not isinstance(kind, type) or not issubclass(kind, JobTrait):
        raise ValueError(
            f"{path}: job {described.name}: {described.kind} is not a class of jobs, and was not called: such a class is "
            f"derived from ScheduledJob or JobTrait"
        )
    try:
        job: Any = kind(**described.arguments)
        for arguments in described.add_mesh:
            job.add_mesh(**arguments)
        if described.spares:
            job.use_spares(**described.spares)
    except (TypeError, ValueError) as exc:
        raise ValueError(f"{path}: job {described.name}: {exc}{_meant(exc, kind)}") from exc
    return job  # type: ignore[no-any-return]


def _meant(exc: Exception, kind: type[JobTrait]) -> str:
    """Returns which argument of a job is meant by one that it does not have, if one is near."""
    unknown = re.search(r"unexpected keyword argument '(\w+)'$", str(exc))
    known = inspect.signature(kind).parameters
    close = difflib.get_close_matches(unknown[1], known, 1) if unknown else []
    return f"; did you mean {close[0]}?" if close else ""


_states: dict[str, JobState] = {}  # of this process, by the place of their file


def hosts_from_config(name: str) -> HostMesh:
    """The mesh `name` of the job that this project's file describes and the environment picks (MONARCH_JOB, else
    `default-job`, else the only one).

    The file is monarch.toml or pyproject.toml, in the working directory or above it, as far up as folders are this user's or
    root's; PermissionError for one that somebody else could have written. The first call starts the job or finds it
    running, as `state()` does; each job keeps its own file in `.monarch`. Further calls give meshes of the same job. Without
    a file that speaks of jobs these are two hosts on this machine, which end with the program.

    ValueError for what the file may not say; AttributeError, which lists the meshes, for one that the job has not; what
    starting the job raises.
    """
    project = find(Path.cwd())
    if project is None:
        return two_local_hosts(name)
    described = pick(project, os.environ)
    cached = str(Path(project.path).parent / FOLDER / f"job_{described.name}" / "state.pkl")
    if cached not in _states:
        _states[cached] = build(described, project.path).state(cached_path=cached)
    return getattr(_states[cached], name)  # type: ignore[no-any-return]
