"""Words that a shell completes besides verbs and options: pids and ranks of programs that run, meshes, jobs, contexts.

Whoever presses Tab waits: a look takes SECONDS at most once its modules are loaded (0.1 s of processor time, which a busy
machine is slow to give), and what was not found by then is not offered. Nothing is ever printed, nothing unpickled: running
programs of this user answer in msgpack, jobs are read from the project's file.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monarch._text import one_line

if TYPE_CHECKING:
    from monarch.admin.programs import Program
    from monarch.job.project_file import Described

SECONDS = 0.3
MOST = 100  # words
_PROGRAMS = 4  # programs that are asked where several may be meant
_SHOWN = 60  # characters of a program's command line
_LONGEST = 200  # characters of a name
_LARGEST = 256 * 1024  # bytes of a Python file in which jobs are looked for

Words = Mapping[str, str] | list[str]  # words, some with what is said of them
Completer = Callable[[str, argparse.Namespace], Words]


def attach(parser: argparse.ArgumentParser) -> None:
    """Gives the arguments of `monarch` that name something their completers. The process is about to end: it does not log
    any more."""
    logging.disable()
    for verb, inner in _verbs(parser):
        for action in inner._actions:
            for name in (*action.option_strings, action.dest):
                found = _COMPLETERS.get((verb, name)) or _COMPLETERS.get(("", name))
                if found is not None:
                    _set(action, *found)


def _set(action: Any, completer: Completer, module: str) -> None:
    def complete(prefix: str, parsed_args: argparse.Namespace, **_more: object) -> Words:
        return within(SECONDS, lambda: completer(prefix, parsed_args), module)

    action.completer = complete


def _verbs(parser: argparse.ArgumentParser, verb: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                full = f"{verb} {name}".strip()
                yield full, inner
                yield from _verbs(inner, full)


def within(seconds: float, look: Callable[[], Words], module: str = __name__) -> Words:
    """Returns what `look` finds in so many seconds once `module` is loaded, MOST words at most; none when it takes longer, or
    fails."""
    with suppress(Exception):  # as below
        importlib.import_module(module)
    found: list[Words] = []

    def run() -> None:
        try:
            found.append(look())
        except BaseException:  # whatever is wrong is said by the verb, when it is called
            pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    words = found[0] if found else []
    kept = [word for word in words if word and len(word) <= _LONGEST and one_line(word) == word][:MOST]
    return {word: words[word] for word in kept} if isinstance(words, Mapping) else kept


# --- programs


def _pids(prefix: str, given: argparse.Namespace) -> Words:
    from monarch.admin.programs import running_programs

    programs = [program for program in running_programs() if str(program.pid).startswith(prefix)]
    return {str(program.pid): one_line(program.command)[:_SHOWN] for program in programs}


def _meant(given: argparse.Namespace) -> list[Program]:
    """Returns the program that the words mean, or those that they may mean."""
    from monarch.admin.programs import choose, running_programs

    try:
        return [choose(getattr(given, "pid", None))]
    except ValueError:  # NotFoundError is one
        return running_programs()[:_PROGRAMS] if getattr(given, "pid", None) is None else []


def _processes(given: argparse.Namespace) -> list[tuple[str, int]]:
    from monarch.admin import places

    return [place for program in _meant(given) for place in places.with_output(program, SECONDS)]


def _actors(given: argparse.Namespace) -> list[tuple[str, int]]:
    from monarch.admin import places

    return [place for program in _meant(given) for place in places.with_actors(program, SECONDS)]


def _meshes_of(places: Callable[[argparse.Namespace], list[tuple[str, int]]]) -> Completer:
    def complete(prefix: str, given: argparse.Namespace) -> Words:
        return sorted({mesh for mesh, _ in places(given) if mesh.startswith(prefix)})

    return complete


def _ranks_of(places: Callable[[argparse.Namespace], list[tuple[str, int]]]) -> Completer:
    """Completes the last number of a list such as `0,3-5,`."""

    def complete(prefix: str, given: argparse.Namespace) -> Words:
        before, comma, last = prefix.rpartition(",")
        wanted = getattr(given, "mesh", None)
        ranks = {rank for mesh, rank in places(given) if wanted is None or mesh == wanted}
        return [f"{before}{comma}{rank}" for rank in sorted(ranks) if str(rank).startswith(last)]

    return complete


# --- jobs


def _jobs(prefix: str, given: argparse.Namespace) -> Words:
    from monarch.job import project_file

    project = project_file.find(Path.cwd())
    described = {} if project is None else {name: job.kind for name, job in project.jobs.items()}
    return described | _jobs_of_modules(prefix, given)


def _jobs_of_modules(prefix: str, given: argparse.Namespace) -> dict[str, str]:
    """Completes MODULE.ATTRIBUTE of Python files here. They are read and not run: what counts is `name = SomeJob(...)`."""
    from monarch._linux import private_files

    found: dict[str, str] = {}
    for file in sorted(Path.cwd().glob("*.py"))[:MOST]:
        if file.stem.isidentifier() and f"{file.stem}.".startswith(prefix[: len(file.stem) + 1]):
            try:
                module = ast.parse(private_files.read(file, _LARGEST, own_group=True))
            except (OSError, ValueError, SyntaxError, RecursionError):  # not ours, too large, or half written
                continue
            found |= {f"{file.stem}.{name}": kind for name, kind in _jobs_made(module)}
    return {spec: kind for spec, kind in found.items() if spec.startswith(prefix)}


def _jobs_made(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields the names that a module gives to jobs, each with the job's class."""
    for line in module.body:
        if isinstance(line, (ast.Assign, ast.AnnAssign)) and isinstance(line.value, ast.Call):
            kind = ast.unparse(line.value.func).rpartition(".")[2]
            names = line.targets if isinstance(line, ast.Assign) else [line.target]
            if kind.endswith("Job"):
                yield from ((name.id, kind) for name in names if isinstance(name, ast.Name))


def _job_meshes(prefix: str, given: argparse.Namespace) -> Words:
    """Completes the meshes of the job of the project's file that is meant. A job of a module is not loaded."""
    from monarch.job import project_file

    project = project_file.find(Path.cwd())
    if project is None:
        return []
    named = getattr(given, "job", None)
    try:
        jobs = [project_file.pick(project, {project_file.PICK: named} if named else os.environ)]
    except ValueError:  # none is the default
        jobs = [] if named else list(project.jobs.values())
    return list(dict.fromkeys(mesh for job in jobs for mesh in _declared(job)))


def _declared(job: Described) -> list[str]:
    meshes = job.arguments.get("meshes")
    names = list(meshes) if isinstance(meshes, Collection) and not isinstance(meshes, str) else []
    return [name for name in [*names, *(one.get("name") for one in job.add_mesh)] if isinstance(name, str)]


def _contexts(prefix: str, given: argparse.Namespace) -> Words:
    from monarch.job import contexts

    return contexts.names()


_PROGRAM, _PLACES, _PROJECT, _CONTEXT, _FILES = (
    "monarch.admin.programs",
    "monarch.admin.places",
    "monarch.job.project_file",
    "monarch.job.contexts",
    "monarch._linux.private_files",
)
# By verb and argument; "" is any verb. Each with the module that it loads.
_COMPLETERS: dict[tuple[str, str], tuple[Completer, str]] = {
    ("", "--pid"): (_pids, _PROGRAM),
    ("", "--job"): (_jobs, _PROJECT),
    ("apply", "module_path"): (_jobs_of_modules, _FILES),
    ("logs", "--rank"): (_ranks_of(_processes), _PLACES),
    ("logs", "--mesh"): (_meshes_of(_processes), _PLACES),
    ("stacks", "ranks"): (_ranks_of(_actors), _PLACES),
    ("stacks", "--mesh"): (_meshes_of(_actors), _PLACES),
    ("metrics", "--mesh"): (_meshes_of(_actors), _PLACES),
    ("debug", "--mesh"): (_meshes_of(_actors), _PLACES),
    ("debug", "--dap"): (_ranks_of(_actors), _PLACES),
    ("exec", "--mesh"): (_job_meshes, _PROJECT),
    ("run", "--mesh"): (_job_meshes, _PROJECT),
    ("shell", "--mesh"): (_job_meshes, _PROJECT),
    ("kill", "context"): (_contexts, _CONTEXT),
    ("context use", "name"): (_contexts, _CONTEXT),
    ("context rm", "name"): (_contexts, _CONTEXT),
}
