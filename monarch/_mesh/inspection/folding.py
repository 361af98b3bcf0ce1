"""Stacks of many ranks on one page: those that are the same are shown once, with the ranks that are there. Pure.

trainers, 64 ranks: 63 at train.py:88 in step() (0-16, 18-63), 1 at data.py:31 in load() (17)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from monarch._mesh.inspection.stack_records import HOW_ITSELF, HOW_SIGNAL, ProcessStacks, StackFrame, ThreadStack
from monarch._text import duration, one_line, ranges
from monarch._wire.address import CLIENT, name_of, split_proc_name

NO_NATIVE = "no native frames"  # with which the reason begins for which py-spy has shown nothing of a process
GROUPS = 30  # groups of a mesh that are shown
_RANGES = 12  # ranges of ranks that are shown of one group


class StackGroup(NamedTuple):
    """Ranks of a mesh whose stacks are the same. `stack` is that of the first; `seconds`: how long the endpoint has run, the
    longest. `members`: the stacks of all of them."""

    ranks: list[int]
    stack: ThreadStack
    seconds: float
    members: list[ThreadStack]

    def where(self) -> str:
        """Returns where it is, in a few words."""
        return where(self.stack)


class Section(NamedTuple):
    """The threads of one kind in all processes of a mesh: an actor of it, or another thread by its name."""

    title: str
    ranks: int
    groups: list[StackGroup]


def where(stack: ThreadStack) -> str:
    """Returns where one stack is: `at train.py:88 in step()`, `at train.py:88 in step(), in all_reduce()`."""
    if stack.idle:
        return "idle"
    if not stack.frames:
        return (
            f"in {stack.endpoint}(), outside of the program's own lines" if stack.endpoint else "outside of the program"
        )
    python = [frame for frame in stack.frames if not is_native(frame)] or stack.frames
    own = next((frame for frame in reversed(python) if not is_library(frame)), python[-1])
    inner = "" if own is python[-1] else f", in {plain(python[-1].function)}"
    return f"{'awaiting at' if stack.task else 'at'} {short(own)}{inner}"


def is_native(frame: StackFrame) -> bool:
    """True if it is code of a library, as py-spy sees it."""
    return frame.line == 0 or not frame.file.endswith((".py", ">"))


def is_library(frame: StackFrame) -> bool:
    """True if it is Python's own or an installed package's, rather than the program's."""
    return any(part in frame.file for part in _LIBRARIES) or frame.file.startswith("<frozen ")


_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3")


def plain(function: str) -> str:
    """Returns `all_reduce()`, for a qualified name."""
    name = function.rpartition("<locals>.")[2]
    return name if name.endswith(">") else f"{name}()"


def short(frame: StackFrame) -> str:
    """`train.py:88 in step()`, for a line in which many are named."""
    return f"{os.path.basename(frame.file)}:{frame.line} in {plain(frame.function)}"


def called(ranks: Sequence[int], most: int | None = _RANGES) -> str:
    """Returns `rank 3`, `ranks 0-16, 18`."""
    return f"rank{'s' if len(set(ranks)) != 1 else ''} {ranges(ranks, most)}"


def fold(processes: Iterable[ProcessStacks]) -> list[Section]:
    """Meshes in the order in which they come; the groups of each, the largest first, among equals that of the lowest rank."""
    titles: dict[tuple[str, ...], str] = {}
    members: dict[tuple[str, ...], dict[tuple[object, ...], list[tuple[int, ThreadStack]]]] = {}
    ranks: dict[tuple[str, ...], set[int]] = {}
    for process in processes:
        for stack in process.threads:
            kind, title, rank = _place(process, stack)
            titles.setdefault(kind, title)
            ranks.setdefault(kind, set()).add(rank)
            members.setdefault(kind, {}).setdefault(_same(stack), []).append((rank, stack))
    return [Section(titles[kind], len(ranks[kind]), _groups(members[kind].values())) for kind in titles]


def _place(process: ProcessStacks, stack: ThreadStack) -> tuple[tuple[str, ...], str, int]:
    """(what is folded together, its title, the rank in it)."""
    name = name_of(process.address)
    split = split_proc_name(name)
    if split is None:
        at = f"the program (pid {process.pid})" if name == CLIENT else process.address
        if stack.actor:
            return (process.address, stack.key, stack.actor), f"{stack.actor} in {at}", stack.rank
        return (process.address, stack.thread), f"{at}, {stack.thread}", 0
    uid, rank = split
    if stack.actor:
        return (uid, stack.key, stack.actor), stack.actor, stack.rank if stack.key else rank
    thread = "" if stack.thread == "MainThread" else f", {_without_number(stack.thread)}"
    return (uid, _without_number(stack.thread)), f"processes of {process.mesh or uid}{thread}", rank


def _without_number(thread: str) -> str:
    """Threads that are numbered are folded by their name."""
    return "other threads" if thread.startswith("thread ") else thread.rstrip("0123456789")


def _same(stack: ThreadStack) -> tuple[object, ...]:
    lines = tuple((frame.file, frame.line, frame.function.rpartition(".")[2]) for frame in stack.frames)
    return lines, stack.endpoint, stack.idle, bool(stack.task)


def _groups(found: Iterable[list[tuple[int, ThreadStack]]]) -> list[StackGroup]:
    groups = []
    for same in found:
        same.sort(key=lambda each: each[0])
        ranks = sorted({rank for rank, _ in same})
        stacks = [stack for _, stack in same]
        groups.append(StackGroup(ranks, stacks[0], max(stack.seconds for stack in stacks), stacks))
    return sorted(groups, key=lambda group: (-len(group.ranks), group.ranks))


def completed(processes: Sequence[ProcessStacks]) -> list[ProcessStacks]:
    """Fills in what only others of the same mesh know, for processes that did not tell it themselves: the name of the
    mesh, and which actor a thread is: the one that has an endpoint of that name, or the only one there is. Of actors
    that cannot be told apart, those that are idle are left out."""
    meshes: dict[str, str] = {}
    actors: dict[str, dict[str, set[tuple[str, str]]]] = {}
    for process in processes:
        uid, _ = _uid(process)
        if process.mesh:
            meshes[uid] = process.mesh
        known = actors.setdefault(uid, {})
        for stack in process.threads:
            if stack.key:
                for endpoint in (stack.endpoint, _ANY):
                    known.setdefault(endpoint, set()).add((stack.actor, stack.key))

    def named(stack: ThreadStack, uid: str, rank: int) -> ThreadStack | None:
        if not stack.actor or stack.key:
            return stack
        for endpoint in (stack.endpoint, _ANY):
            found = actors[uid].get(endpoint, set())
            if endpoint and len(found) == 1:
                ((actor, key),) = found
                return msgspec.structs.replace(stack, actor=actor, key=key, rank=rank)
        return None if stack.idle else stack

    found = []
    for process in processes:
        uid, rank = _uid(process)
        threads = [told for each in process.threads if (told := named(each, uid, rank)) is not None]
        found.append(msgspec.structs.replace(process, mesh=meshes.get(uid, process.mesh), threads=threads))
    return found


_ANY = "*"  # any endpoint


def _uid(process: ProcessStacks) -> tuple[str, int]:
    """(the uid of its mesh, its place there)."""
    return split_proc_name(name_of(process.address)) or (process.address, 0)


# --- for people


def summary(section: Section) -> str:
    """One line: how many of its ranks are where."""
    groups = section.groups[:4]
    if section.ranks == 1 and len(groups) == 1:
        return f"{section.title}: {groups[0].where()}"
    parts = []
    for group in groups:
        lone = len(group.ranks) == 1
        parts.append(
            f"rank {group.ranks[0]} {group.where()}"
            if lone
            else f"{len(group.ranks)} of {section.ranks} ranks {group.where()}"
        )
    more = len(section.groups) - len(groups)
    return f"{section.title}: {', '.join(parts)}{f', and {more} more places' if more else ''}"


def page(processes: Sequence[ProcessStacks], silent: Mapping[str, str]) -> str:
    """Returns the page for people: a section for each mesh, whole stacks once for each group."""
    lines: list[str] = []
    for section in fold(processes):
        if lines:
            lines.append("")
        lines.append(summary(section))
        for group in section.groups[:GROUPS]:
            lines += _group(section, group)
        if len(section.groups) > GROUPS:
            lines.append(f"  ({len(section.groups) - GROUPS} more groups of ranks are left out)")
    lines += _notes(processes)
    meshes = {uid: process.mesh for process in processes if (uid := _uid(process)[0]) and process.mesh}
    gone = {address: why for address, why in silent.items() if not why.startswith(NO_NATIVE)}
    if gone:
        lines += ["", f"no stacks of {len(gone)} {'process' if len(gone) == 1 else 'processes'}:"]
        lines += [f"  {named_address(address, meshes)}: {why}" for address, why in gone.items()]
    native: dict[str, list[str]] = {}
    for address, why in silent.items():
        if address not in gone:
            native.setdefault(why, []).append(named_address(address, meshes))
    for why, those in native.items():
        lines += ["", f"{why}: {', '.join(those)}"]
    return "\n".join(map(one_line, lines)).strip() or "no thread is in a line of the program"


def _group(section: Section, group: StackGroup) -> list[str]:
    stack = group.stack
    if stack.idle:
        return [f"  {called(group.ranks)}: idle"] if section.ranks > 1 else []
    head = f"  {called(group.ranks)}" if section.ranks > 1 else "  stack"
    if stack.endpoint:
        head += f", in {stack.endpoint}()"
        if group.seconds:
            head += f" for {duration(group.seconds)}"
    if stack.task:
        head += f", suspended ({stack.task})"
    if stack.gil:
        head += ", holds the interpreter lock"
    if stack.state == "D":
        head += ", waits in the kernel for a device or a file system"
    lines = [f"{head}:" if stack.frames else f"{head}: outside of the program's own lines"]
    if stack.left_out:
        lines.append("      (outer frames are left out)")
    for frame in stack.frames:
        if frame.line:
            lines.append(f'      File "{frame.file}", line {frame.line}, in {frame.function}')
        else:
            lines.append(f"      {frame.function} ({os.path.basename(frame.file)})")
        lines += [f"          {name} = {text}" for name, text in frame.locals.items()]
    if len(group.members) > 1 and any(frame.locals for frame in stack.frames):
        lines.append(f"      (the variables are those of rank {group.ranks[0]}; name another one to see its own)")
    return lines


def _notes(processes: Sequence[ProcessStacks]) -> list[str]:
    """Returns what is not as usual."""
    lines = []
    got: dict[tuple[str, str], list[ProcessStacks]] = {}
    for process in processes:
        if process.how != HOW_ITSELF and process.why:
            got.setdefault((process.how, process.why), []).append(process)
        if process.left_out:
            lines.append(f"{place(process)}: {process.left_out} threads and tasks are left out")
    for (how, why), those in got.items():
        named = ", ".join(place(process) for process in those[:3])
        more = f" and {len(those) - 3} more" if len(those) > 3 else ""
        lines.append(f"by {_HOW.get(how, how)}, because it told nothing itself: {named}{more} ({why})")
    return ["", *lines] if lines else []


_HOW = {HOW_SIGNAL: "a signal"}


def place(process: ProcessStacks) -> str:
    """Returns which process it is, for people."""
    if split_proc_name(name_of(process.address)) is None:
        return f"the program (pid {process.pid}, host {process.host})"
    return f"rank {process.rank} of {process.mesh or process.address} (pid {process.pid}, host {process.host})"


def named_address(address: str, meshes: Mapping[str, str]) -> str:
    """Returns a process of which only the address is known, for people. `meshes`: names by uid."""
    split = split_proc_name(name_of(address))
    if split is None:
        return "the program" if name_of(address) == CLIENT else address
    return f"rank {split[1]} of {meshes.get(split[0]) or address}"
