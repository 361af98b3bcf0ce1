"""monarch exec: a command on the job's hosts."""

from __future__ import annotations

import argparse
import functools
import secrets
from typing import TYPE_CHECKING, Any

from monarch._linux.terminal import show
from monarch.job.commands import command_plan
from monarch.tools import json_output
from monarch.tools.verbs.current_job import (
    add_environment,
    add_kill,
    current_job,
    environment,
    killing,
    mesh_of,
    point,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from monarch.actor import Future, HostMesh
    from monarch.job import JobState
    from monarch.job.commands.printer import CommandPrinter

_MOST_SCRIPT = 64 << 20

NAME = "exec"
LINE = "run a command on the job's hosts"
TEXT = """\
Runs a command on hosts of the job and ends with its exit status: the largest, of several. The job is started when it
does not run.

By default it runs on the first host, and what it prints is printed here. With --all or --mesh it runs on every host, and each
process writes stdout.txt and stderr.txt there, in a folder of its own that only this user can enter and that is removed
with the job (in the job's gather mount, if it has one: there it stays, as in --output-dir). --stream prints here instead,
each line with its place; so does a job whose hosts end with the command. A command of one word is a line for bash. FILE.py,
and -m MODULE, run in a process of the job; all else is started there. Others see the words of a command in the list of
processes; they do not see a --script.
Every process finds its place in MONARCH_RANK_<dim> and MONARCH_SIZE_<dim>.

examples:
  monarch exec nvidia-smi
  monarch exec --all --stream 'df -h /data | tail -1'
  monarch exec --mesh trainers --per-host gpu=8 -e EPOCHS=3 train.py --lr 0.1
  monarch exec --point hosts=3 -- ls -l /tmp
  monarch exec --script setup.sh --all
  monarch exec -m pytest -x            # everything behind -m is the module's
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--one", action="store_true", help="the first host of the first mesh (default)")
    which.add_argument("--all", dest="run_all", action="store_true", help="every host of every mesh")
    which.add_argument("--mesh", metavar="NAME", help="every host of this mesh")
    which.add_argument("--point", metavar="DIM=N,...", help="one host of the first mesh")
    parser.add_argument("--per-host", metavar="DIM=N,...", help="so many processes on each host")
    parser.add_argument("--stream", action="store_true", help="print what several hosts write, in place of files there")
    parser.add_argument(
        "--output-dir", metavar="DIR", help="where the files are, which stay (default: a new folder in /tmp there)"
    )
    parser.add_argument(
        "--python-executable", metavar="PATH", help="the interpreter there, whose folder goes first on PATH"
    )
    add_environment(parser)
    add_kill(parser)
    parser.add_argument("--script", metavar="FILE", help="a script for bash, from here; - reads it from stdin")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE ...", help="a Python module")
    parser.add_argument("cmd", nargs=argparse.REMAINDER, metavar="CMD", help="the command, and its arguments")


def run(options: argparse.Namespace) -> int:
    from monarch.job.commands.run_command import CommandRun, printer_of

    command, script = command_of(options)
    env = environment(options.env)
    per_host = point(options.per_host) if options.per_host else None
    place = point(options.point) if options.point else None
    current = current_job()

    def act() -> int:
        meshes = chosen(current.state(), options)
        several = options.run_all or options.mesh is not None
        folder, told = options.output_dir, f"{options.output_dir}/ on each worker"
        view = None
        if several and folder is None and not options.stream:
            view = gathered(current.job, list(meshes), per_host)
            if view is not None or current.job._holder._hosts_outlive_program():
                folder, told = output_place(view, secrets.token_hex(4))
        futures = []
        for name, mesh in meshes.items():
            python = options.python_executable
            hosts = mesh if python is None else mesh.with_python_executable(python)
            futures.append(
                CommandRun(
                    hosts,
                    command,
                    env=env,
                    workdir=options.workdir,
                    output_dir=folder if folder is None or len(meshes) == 1 else f"{folder}/{name}",
                    rank=None if several or place else 0,
                    point=place,
                    per_host=per_host,
                    script=script,
                    passing=options.output_dir is None and view is None,
                    printer=functools.partial(lines_of, name) if options.json else printer_of,
                ).begin()
            )
        try:
            status = max(future.get() for future in futures)
        except KeyboardInterrupt:
            end(futures)
            raise
        if options.json:
            from monarch.tools.documents import ExecEnded

            return json_output.end(ExecEnded(exit_status=status, output=folder))
        if folder is not None:
            show(f"Output → {told}")
        return status

    return killing(current, options.kill, act)


def lines_of(mesh: str, places: Sequence[Mapping[str, int]]) -> CommandPrinter:
    """Prints what these processes write as JSON."""
    from monarch.job.commands.printer import LinePrinter
    from monarch.tools.documents import ExecOutput, ExecProcess

    def line(rank: int, stream: int, text: str) -> None:
        name = json_output.stream_name(stream)
        json_output.show(ExecOutput(mesh=mesh, rank=rank, place=dict(places[rank]), stream=name, text=text))

    def ended(rank: int, status: int) -> None:
        json_output.show(ExecProcess(mesh=mesh, rank=rank, place=dict(places[rank]), status=status))

    return LinePrinter(len(places), line, ended)


def gathered(job: Any, meshes: list[str], per_host: dict[str, int] | None) -> tuple[str, str] | None:
    """A directory of the hosts that can be seen here, and where: of the first gather mount that all of these meshes have."""
    for component in job._holder._components:
        for mount in getattr(component, "gathered", ()):
            there: str = mount.remote
            if per_host and command_plan.SUBDIR in there:  # named by the host there, and by the process for a command
                continue
            if mount.meshes is None or set(meshes) <= set(mount.meshes):
                return there, mount.local
    return None


def output_place(view: tuple[str, str] | None, name: str) -> tuple[str, str]:
    """Returns where the files of a command go on the hosts, and how people are told."""
    if view is None:
        return f"/tmp/monarch_exec_{name}", f"/tmp/monarch_exec_{name}/ on each worker"
    there, here = view
    return f"{there}/exec_outputs/{name}", f"{here}/, in exec_outputs/{name}/ of each host"


def end(futures: Sequence[Future[int]]) -> None:
    """Ends what runs: a program would wait for it."""
    from monarch.actor import get_active_proc_meshes

    for mesh in get_active_proc_meshes():
        mesh.stop("interrupted")
    for future in futures:
        try:
            future.get()
        except Exception:  # its processes were stopped
            pass


def chosen(state: JobState, options: argparse.Namespace) -> dict[str, HostMesh]:
    if options.run_all:
        return dict(state._hosts)
    name = options.mesh or next(iter(state._hosts))
    return {name: mesh_of(state, name)}


def command_of(options: argparse.Namespace) -> tuple[list[str], bytes | None]:
    """Returns what is to run, and the script of which that is the name and the arguments. ValueError when nothing is."""
    words = options.cmd[1:] if options.cmd[:1] == ["--"] else options.cmd
    if options.script is not None:
        with open(0 if options.script == "-" else options.script, "rb", closefd=options.script != "-") as file:
            text = file.read(_MOST_SCRIPT + 1)
        if len(text) > _MOST_SCRIPT:
            raise ValueError(f"--script {options.script} has more than {_MOST_SCRIPT >> 20} MiB")
        return [options.script, *words], text
    if options.module is not None:
        if not options.module:
            raise ValueError("-m takes the name of a module")
        return ["-m", *options.module, *words], None
    if not words:
        raise ValueError("no command: say what to run, as in `monarch exec hostname`")
    return list(words), None
