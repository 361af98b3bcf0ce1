"""The order to a host that is to start processes: the program's side, before the spec is sent."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

import msgspec

from monarch._mesh.start import threads
from monarch._mesh.start.agent_process import inheritable
from monarch._mesh.start.preload import preloads
from monarch._runtime.context import here
from monarch._shape.extent import Extent, Point
from monarch._wire.message import Command, EnvChange, LaunchSpec
from monarch.config import settings


class BootstrapCommand:
    """The command that starts a process of ours: `program args...`, shown as `arg0`, with `env` over the inherited
    environment.

    `env` values of None remove a variable; without `inherit_env` the process gets `env` alone. The program must end up
    in `python -m monarch._mesh.bootstrap` with its descriptors and environment kept (a wrapper does, through exec).
    """

    def __init__(
        self,
        program: str,
        arg0: str | None,
        args: Sequence[str],
        env: Mapping[str, str | None],
        inherit_env: bool = True,
    ) -> None:
        self.program = program
        self.arg0 = arg0
        self.args = list(args)
        self.env = dict(env)
        self.inherit_env = inherit_env

    def with_env(self, env: Mapping[str, str | None]) -> BootstrapCommand:
        """A copy with `env` over its own."""
        return BootstrapCommand(self.program, self.arg0, self.args, {**self.env, **env}, self.inherit_env)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BootstrapCommand) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self.program)

    def __repr__(self) -> str:
        return f"BootstrapCommand(program={self.program!r}, args={self.args!r}, env={sorted(self.env)!r})"


def default_bootstrap_cmd() -> BootstrapCommand:
    """The command that starts a process with this interpreter."""
    return BootstrapCommand(sys.executable, None, ["-P", "-m", "monarch._mesh.bootstrap"], {})


def commands_for(
    given: BootstrapCommand | Callable[[Point], BootstrapCommand] | None, extent: Extent, count: int
) -> list[BootstrapCommand]:
    """A command for each of `count` ranks, or none; `given` may be a function of the rank's Point."""
    if given is None:
        return []
    commands = [given if isinstance(given, BootstrapCommand) else given(Point(rank, extent)) for rank in range(count)]
    for command in commands:
        if not isinstance(command, BootstrapCommand):
            raise TypeError(f"bootstrap_command must give a BootstrapCommand, got {type(command).__name__}")
    return commands


def launch_spec(
    name: str,
    env: Mapping[str, str | None],
    executable: str,
    *,
    gated: bool,
    remote: bool = False,
    commands: Sequence[BootstrapCommand] = (),
    binds: list[dict[str, str]] | None = None,
    labels: Sequence[str] = (),
) -> LaunchSpec:
    """Returns what processes spawned from here and now inherit; those of another host (`remote`) its environment and
    not ours. `labels`: the dimensions of their mesh."""
    from monarch._linux import private_files  # only a program that starts something needs them
    from monarch._mesh.start import device_slots

    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        cwd = "/"
    paths = [os.path.abspath(entry) if entry else cwd for entry in sys.path]
    if env.get("PYTHONPATH"):  # read when an interpreter starts; forked processes get their path from here
        paths = [*str(env["PYTHONPATH"]).split(os.pathsep), *paths]
    # First, as for `python -m`. A folder in which others could put modules stays where the program itself has it, if it has:
    # before Python's own library, a file of theirs with the name of one of its modules would run instead of that.
    if private_files.is_closed(cwd):
        paths = [cwd, *(path for path in paths if path != cwd)]
    change = _change(env)
    streams = remote and settings.stream_remote_output()
    inherited = {} if remote else change.over(device_slots.inherited(threads.inherited(inheritable(os.environ))))
    return LaunchSpec(
        name=name,
        env=inherited,
        cwd=cwd,
        path=paths,
        executable=executable,
        config=msgspec.msgpack.encode(settings.snapshot()),
        forward_logs=settings.enable_log_forwarding() or streams,
        stream_lines=streams,
        prefix_with_rank=settings.prefix_with_rank(),
        preload=preloads(),
        gated=gated,
        commands=[_command(command, inherited, remote) for command in commands] or None,
        binds=binds,
        client=here().client,
        change=change if remote else None,
        share_threads=settings.share_threads() and not threads.is_said(env),
        share_devices=device_slots.wanted(env, labels) if settings.share_devices() else "",
    )


def _command(command: BootstrapCommand, inherited: Mapping[str, str], remote: bool) -> Command:
    change = _change(command.env, command.inherit_env)
    env = {} if remote else change.over(inherited)
    return Command(command.program, command.arg0, list(command.args), env, change if remote else None)


def _change(env: Mapping[str, str | None], inherit: bool = True) -> EnvChange:
    return EnvChange({name: None if value is None else str(value) for name, value in env.items()}, inherit)
