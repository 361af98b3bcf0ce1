"""Starting an operating-system process for a rank: the command, its descriptors, its place on the machine."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Mapping

from monarch._linux import private_files, procfs
from monarch._linux.processors import parse_list
from monarch._mesh.start import threads
from monarch._wire.message import Command, LaunchSpec

_NODES = "/sys/devices/system/node"


class CannotLaunch(Exception):
    """The reason that a process cannot be started; the text is for the user."""


def command_for(spec: LaunchSpec, rank_in_host: int, can_fork: bool = True) -> Command | None:
    """Returns what to execute for this rank; None when forking serves."""
    command = spec.commands[rank_in_host] if spec.commands else None
    bind = spec.binds[rank_in_host] if spec.binds else {}
    start = start_env(spec.env) == start_env(os.environ)
    if command is None and not spec.executable and "membind" not in bind and start and can_fork:
        return None
    if command is None:
        program = spec.executable or sys.executable
        # -P: nothing is imported from the working directory, in which others may write, before it is known what the program
        # imports from.
        command = Command(program, None, ["-P", "-m", "monarch._mesh.bootstrap"], dict(spec.env))
    program = find_program(command.program, command.env)
    command = Command(program, command.arg0, command.args, threads.with_share(command.env, threads_of(spec, bind)))
    return _under_numactl(command, bind) if "membind" in bind else command


# The interpreter and the dynamic loader read these when a process starts: one that was forked cannot have others.
_READ_AT_START = (
    "LD_", "PYTHONHASHSEED", "PYTHONHOME", "PYTHONMALLOC", "PYTHONDEVMODE", "PYTHONOPTIMIZE", "PYTHONWARNINGS",
    "PYTHONUTF8", "MALLOC_", "GLIBC_TUNABLES",
)  # fmt: skip


def start_env(env: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment for which a process must be executed rather than forked."""
    return {key: value for key, value in env.items() if key.startswith(_READ_AT_START)}


def adapt_spec(spec: LaunchSpec, environ: Mapping[str, str]) -> None:
    """Makes a spec that another host has sent one of this host: our environment with its changes, and of its folders
    those that exist here too."""
    if spec.change is not None:
        spec.env = spec.change.over(environ)
    for command in spec.commands or ():
        if command is not None and command.change is not None:
            command.env = command.change.over(spec.env)
    from_here, first = spec.cwd in spec.path, spec.path[:1] == [spec.cwd]
    if not os.path.isdir(spec.cwd):
        spec.cwd = os.getcwd()
        from_here = from_here and private_files.is_closed(spec.cwd)
    own = [entry for entry in sys.path if entry]
    theirs = [entry for entry in spec.path if entry not in own and os.path.exists(entry)]
    spec.path = [entry for entry in [*own, *theirs] if entry != spec.cwd]
    if from_here:
        spec.path.insert(0 if first else len(spec.path), spec.cwd)


def find_program(program: str, env: Mapping[str, str]) -> str:
    found = shutil.which(program, path=env.get("PATH"))
    if found is None:
        reason = "is not executable" if os.path.exists(program) else "does not exist"
        raise CannotLaunch(
            f"cannot start processes with {program!r}: it {reason} (from with_python_executable or bootstrap_command)"
        )
    return found


def _under_numactl(command: Command, bind: Mapping[str, str]) -> Command:
    numactl = shutil.which("numactl")
    if numactl is None:
        raise CannotLaunch("proc_bind with 'membind' needs the program numactl, which is not installed on this host")
    options = [f"--{key}={value}" for key, value in bind.items() if key != "cpus"]
    return Command(numactl, None, [*options, command.program, *command.args], command.env)


def apply_affinity(bind: Mapping[str, str]) -> None:
    """Binds this process to the processors of `bind` (`cpus`, `physcpubind`, `cpunodebind`); says so when it cannot."""
    try:
        cpus = bound_to(bind)
        if cpus:
            os.sched_setaffinity(0, cpus)
    except (OSError, ValueError) as exc:
        sys.stderr.write(f"monarch: proc_bind {dict(bind)} could not be applied: {exc}\n")


def bound_to(bind: Mapping[str, str]) -> set[int]:
    """The processors of `bind`. OSError, ValueError when they cannot be told."""
    cpus: set[int] = set()
    for key in ("cpus", "physcpubind"):
        if key in bind:
            cpus |= parse_list(bind[key])
    for node in parse_list(bind["cpunodebind"]) if "cpunodebind" in bind else ():
        with open(f"{_NODES}/node{node}/cpulist") as file:
            cpus |= parse_list(file.read().strip())
    return cpus


def threads_of(spec: LaunchSpec, bind: Mapping[str, str]) -> int:
    """The share of a process of this mesh that is bound so; 0 when it gets none."""
    if not spec.threads:
        return 0
    try:
        cpus = bound_to(bind)
    except (OSError, ValueError):  # said when it is applied
        cpus = set()
    return threads.share_of_bound(len(cpus), spec.binds or [], bind) if cpus else spec.threads


def check_room(count: int, running: int) -> None:
    """Raises CannotLaunch when so many more processes cannot run here, naming the limit."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and running + count > soft:
        raise CannotLaunch(f"{count} processes asked for, and the limit is {soft} (ulimit -u, processes of this user)")
    pids_max, pids_now = _control_group()
    if pids_max is not None and pids_now + 3 * count > pids_max:
        raise CannotLaunch(
            f"{count} processes (with three threads each) asked for, and the control group allows {pids_max} tasks, of "
            f"which {pids_now} exist (pids.max)"
        )
    files, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 3 * running + 5 * count + 64  # two more for each until it is forked
    if files != resource.RLIM_INFINITY and wanted > files:
        raise CannotLaunch(
            f"{count} processes asked for: the host agent needs {wanted} descriptors for them, and the limit is "
            f"{files} (ulimit -n)"
        )
    needed, (_, available) = count * 10 * 1024 * 1024, procfs.memory()
    if 0 < available < needed:
        raise CannotLaunch(
            f"{count} processes asked for: they need at least {needed >> 20} MiB of memory (10 MiB each), and "
            f"{available >> 20} MiB are available on this host"
        )


def _control_group() -> tuple[int | None, int]:
    try:
        with open("/sys/fs/cgroup/pids.max") as file:
            limit = file.read().strip()
        with open("/sys/fs/cgroup/pids.current") as file:
            return (None if limit == "max" else int(limit)), int(file.read())
    except (OSError, ValueError):
        return None, 0
