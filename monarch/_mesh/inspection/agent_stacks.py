"""Answers of a host agent for processes that do not answer themselves: stacks by a signal or by py-spy, and
what the system knows of each. Answered on threads of the agent, which goes on meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from monarch._mesh.failures import stacks
from monarch._mesh.inspection import fault_dump, fault_signal
from monarch._mesh.inspection.fault_dump import actor_of
from monarch._mesh.inspection.host_usage import HostUsage, ProcessUsage, memory_of_host
from monarch._mesh.inspection.stack_records import (
    HOW_NATIVE,
    HOW_SIGNAL,
    AgentStacks,
    ProcessStacks,
    StackFrame,
    StacksByAgent,
    ThreadStack,
)
from monarch._text import NAME_LIMIT, sendable
from monarch._wire.address import host_of, name_of, split_proc_name
from monarch.config import settings

_AT_ONCE = 4  # py-spys that run at a time
_LONGEST = 60.0  # seconds that either may be given


def answer_by_signal(agent: Any, argument: bytes) -> bytes:
    return msgspec.msgpack.encode(by_signal(agent.directory, _own(agent, argument)))


def by_signal(folder: str, wanted: StacksByAgent) -> AgentStacks:
    """Collects the stacks of processes whose run folder that is, by a signal."""
    names = {name_of(address): address for address in wanted.addresses}
    dumps, silent = fault_signal.ask_by_signal(folder, list(names), min(wanted.seconds, _LONGEST))
    found = []
    for name, (pid, text) in dumps.items():
        threads = fault_dump.parse(text, wanted.all_threads)
        found.append(_process(names[name], pid, threads, HOW_SIGNAL))
    return AgentStacks(found, {names[name]: why for name, why in silent.items()})


def answer_native(agent: Any, argument: bytes) -> bytes:
    return msgspec.msgpack.encode(by_pyspy(agent.directory, _own(agent, argument)))


def _own(agent: Any, argument: bytes) -> StacksByAgent:
    """Returns what concerns this host: a caller asks all agents the same."""
    wanted = _decode(argument)
    own = [address for address in wanted.addresses if host_of(address) in agent.routes.names]
    return msgspec.structs.replace(wanted, addresses=own)


def by_pyspy(folder: str, wanted: StacksByAgent) -> AgentStacks:
    """Collects stacks with the frames of native code. Needs the right to trace the processes."""
    program, missing = find_pyspy(wanted.pyspy)
    if missing:
        return AgentStacks([], dict.fromkeys(wanted.addresses, missing))
    found: list[ProcessStacks] = []
    silent: dict[str, str] = {}

    def look(address: str) -> None:
        pid = fault_signal.pid_of(folder, name_of(address))
        if not pid:
            silent[address] = "its pid is not known: it has not begun, or has ended"
            return
        try:
            text = _dump(program, pid, min(wanted.seconds, _LONGEST))
            threads = parse_native(json.loads(text), wanted.all_threads)
        except (OSError, ValueError, subprocess.SubprocessError) as exc:
            silent[address] = str(exc)
        else:
            found.append(_process(address, pid, threads, HOW_NATIVE))

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="monarch-pyspy") as pool:
        list(pool.map(look, wanted.addresses))
    return AgentStacks(sorted(found, key=lambda process: wanted.addresses.index(process.address)), silent)


def find_pyspy(given: str = "") -> tuple[str, str]:
    """(the program, "") or ("", why there is none): the setting pyspy_bin, beside this interpreter, or on PATH."""
    asked = given or settings.pyspy_bin()
    if asked:
        found = shutil.which(asked)
        return (found, "") if found else ("", f"{asked!r} (setting pyspy_bin) is no program on {socket.gethostname()}")
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    found = beside if os.access(beside, os.X_OK) else shutil.which("py-spy")
    if found:
        return found, ""
    return "", f"there is no py-spy on {socket.gethostname()}: pip install 'pymonarch[debug]', or set pyspy_bin"


def _dump(program: str, pid: int, seconds: float) -> str:
    """Returns what py-spy says of a process. RuntimeErrors become ValueError, with the way out."""
    if fault_signal.status_of(pid).get("State", "?")[0] in "Tt":
        raise ValueError("it is stopped (SIGSTOP, Ctrl-Z or a debugger); `kill -CONT` lets it run again")
    command = [program, "dump", "--pid", str(pid), "--json", "--native"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise ValueError(f"py-spy was not done within {seconds:g} s") from None
    if out.lstrip().startswith("["):
        return out
    why = next((line for line in reversed(err.strip().splitlines()) if line.strip()), "it said nothing").strip()
    if "ermission denied" in err or "not permitted" in err:
        why += (
            " (py-spy needs the right to trace processes: in containers the capability SYS_PTRACE; elsewhere "
            "/proc/sys/kernel/yama/ptrace_scope 0, or root)"
        )
    raise ValueError(f"py-spy failed: {why}")


def _process(address: str, pid: int, threads: Any, how: str) -> ProcessStacks:
    split = split_proc_name(name_of(address))
    return ProcessStacks(address, socket.gethostname(), pid, "", split[1] if split else 0, threads, how)


_decode = msgspec.msgpack.Decoder(StacksByAgent).decode


# --- the host


def answer_host(agent: Any, argument: bytes) -> bytes:
    """Memory, load and processes of the host, as HostUsage."""
    running = [
        ProcessUsage.of(start.address, pid, start.name, start.rank, state, why, start.incarnation)
        for start, pid, state, why in agent.roster.overview()
        if pid
    ]
    total, available = memory_of_host()
    usage = HostUsage(agent.host, socket.gethostname(), os.getpid(), total, available, os.getloadavg()[0], running)
    return msgspec.msgpack.encode(usage)


def parse_native(threads: Any, all_threads: bool = False) -> list[ThreadStack]:
    """Reads what `py-spy dump --json --native` says of a process, decoded. ValueError when it is something else. Pure.

    Without `all_threads`, the threads in which lines of the program are, each from its outermost line of the program on:
    native frames below that are what it has called.
    """
    try:
        found = [_native_thread(thread, all_threads) for thread in threads]
    except (TypeError, KeyError, AttributeError) as exc:
        raise ValueError(f"py-spy said something that is not understood ({type(exc).__name__}: {exc})") from None
    return [stack for stack in found if stack is not None]


def _native_thread(thread: dict[str, Any], all_threads: bool) -> ThreadStack | None:
    frames = [
        StackFrame(
            sendable(frame["filename"] or frame.get("module") or "?", NAME_LIMIT),
            int(frame["line"] or 0),
            sendable(frame["name"], NAME_LIMIT),
        )
        for frame in reversed(thread["frames"])
    ]
    actor, endpoint = actor_of(frames)
    if not all_threads:
        first = next(
            (i for i, frame in enumerate(frames) if frame.file.endswith(".py") and not stacks.is_hidden(frame.file)),
            None,
        )
        if first is None:
            return None
        frames = [frame for frame in frames[first:] if not stacks.is_hidden(frame.file)]
    name = thread.get("thread_name") or f"thread {thread['thread_id']}"
    number = int(thread.get("os_thread_id") or 0)
    gil = bool(thread.get("owns_gil"))
    return ThreadStack(sendable(name, NAME_LIMIT), number, frames, actor, endpoint=endpoint, gil=gil)
