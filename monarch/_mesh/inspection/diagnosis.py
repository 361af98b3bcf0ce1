"""The diagnosis of a program that does not go on: what its processes answered in, findings out. Pure.

Processes are looked at twice. What has moved between the two looks is at work, and no finding; so a program that is well
has none. Findings are what is wrong; notes say what a program is doing that takes long, which may be as it should be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import NamedTuple

import msgspec

from monarch._mesh.failures.activity import RunningHandler, WaitEdge
from monarch._mesh.inspection import folding
from monarch._mesh.inspection.collectives import GroupState
from monarch._mesh.inspection.folding import called, where
from monarch._mesh.inspection.host_usage import HostUsage
from monarch._mesh.inspection.small_answers import FailureNote
from monarch._mesh.inspection.stack_records import HOW_ITSELF, ProcessStacks, ThreadStack
from monarch._mesh.inspection.stacks_of_program import Stacks
from monarch._mesh.inspection.wait_graph import WaitGraph
from monarch._text import duration, one_line, size
from monarch._wire.address import name_of, split_proc_name

LONG = 5.0  # seconds from which an endpoint or a wait counts as long
_MAJORITY = 0.6  # share of a mesh that has to be at one place for the others to be stragglers
_FEW = 0.25  # share of a mesh, or one rank, that stragglers are at most
_LITTLE = 0.05  # share of a host's memory that is little
_SHOWN = 10  # pieces of evidence of a finding, findings of a kind
_MESH = re.compile(r"<[^<>]*? ([^{}<>]+?)(?:\{[^<>]*\})?>$")  # the mesh's name in an actor's


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong. `kind`: a word for programs; `title`: a line for people; `evidence`: what was seen; `advice`:
    what to do. `ranks`: whose fault it seems, with `mesh`."""

    kind: str
    title: str
    evidence: list[str]
    advice: str
    mesh: str = ""
    ranks: list[int] = []


class Diagnosis(msgspec.Struct, frozen=True):
    """The findings of what is wrong with a program: see `diagnose`. Picklable. `str()` is a page for people.

    - `findings`: the likeliest cause first. Each has `kind`: "blocking", "circle", "collective", "device", "failed",
      "memory", "silent", "stopped", "straggler", "unreachable" or "wedged"; `title`, a line for people; `evidence`, lines
      of what was seen; `advice`; and `mesh` with `ranks`, whose fault it seems.
    - `notes`: what takes long, and may be as it should be.
    - `looked_at`: how many processes answered.
    """

    findings: list[Finding]
    notes: list[str]
    looked_at: int

    def __str__(self) -> str:
        return page(self)


class ProgramSample(NamedTuple):
    """The program as it was seen at one moment. `groups`: process groups of torch, by the address of every process that has
    told its own, also where there are none."""

    stacks: Stacks
    groups: Mapping[str, Sequence[GroupState]]


class Evidence(NamedTuple):
    """All that was seen. `apart`: seconds between the looks; `unreachable`: hosts whose agents did not answer, and why."""

    first: ProgramSample
    second: ProgramSample
    apart: float
    waits: WaitGraph
    hosts: Sequence[HostUsage]
    unreachable: Mapping[str, str]
    failures: Sequence[FailureNote]


def diagnose(evidence: Evidence) -> Diagnosis:
    """The findings in the order in which one would look: what has ended or stopped explains what waits for it."""
    findings = [
        *_failed(evidence.failures),
        *_unreachable(evidence),
        *_stopped(evidence),
        *_silent(evidence),
        *_in_kernel(evidence),
        *_memory(evidence.hosts),
        *_circles(evidence.waits),
    ]
    collectives = list(_collectives(evidence))
    covered = {(finding.mesh, rank) for finding in collectives for rank in finding.ranks}
    findings += collectives
    findings += _stragglers(evidence, covered)
    findings += _blocking(evidence, covered)
    return Diagnosis(findings, list(_notes(evidence)), len(evidence.second.stacks.processes))


def page(diagnosis: Diagnosis) -> str:
    """Returns the findings as text, the likeliest cause first, with their evidence."""
    count = len(diagnosis.findings)
    if count == 0:
        lines = [sentence(diagnosis)]
    else:
        lines = [f"{count} thing{'s are' if count > 1 else ' is'} wrong ({_looked(diagnosis)})"]
    for number, finding in enumerate(diagnosis.findings, 1):
        lines += ["", f"{number}. {finding.title}"]
        lines += [f"     {line}" for line in finding.evidence[:_SHOWN]]
        if len(finding.evidence) > _SHOWN:
            lines.append(f"     (and {len(finding.evidence) - _SHOWN} more)")
        lines.append(f"   -> {finding.advice}")
    if diagnosis.notes:
        lines += ["", "what takes long, and may be as it should be:", *(f"   {note}" for note in diagnosis.notes)]
    return "\n".join(map(one_line, lines))


def sentence(diagnosis: Diagnosis) -> str:
    """Returns the likeliest cause in a line; that nothing is wrong where there is none."""
    if diagnosis.findings:
        return diagnosis.findings[0].title
    return f"nothing is wrong that can be seen from outside ({_looked(diagnosis)})"


def _looked(diagnosis: Diagnosis) -> str:
    return f"{diagnosis.looked_at} process{'es' if diagnosis.looked_at != 1 else ''} looked at"


# --- processes and hosts


def _failed(failures: Sequence[FailureNote]) -> Iterator[Finding]:
    for failure in failures[:_SHOWN]:
        lines = [line for line in failure.report.strip().splitlines() if line.strip()]
        yield Finding(
            "failed",
            f"{called(failure.ranks)} of {failure.mesh} {'has' if len(failure.ranks) == 1 else 'have'} failed",
            lines[:_SHOWN],
            "the report above says why; calls to these ranks fail until they are restarted (restart(), RestartPolicy)",
            failure.mesh,
            failure.ranks,
        )
    if more := failures[_SHOWN:]:
        yield Finding(
            "failed",
            f"{len(more)} more failures are not shown",
            [f"{called(failure.ranks)} of {failure.mesh}" for failure in more],
            "the newest are above; the log has the reports of all",
        )


def _unreachable(evidence: Evidence) -> Iterator[Finding]:
    for host, why in evidence.unreachable.items():
        yield Finding(
            "unreachable",
            f"host {host} does not answer",
            [why],
            "look whether the machine runs and can be reached; what its processes do is missing from this page",
        )


def _stopped(evidence: Evidence) -> Iterator[Finding]:
    silent = evidence.second.stacks.silent
    for host in evidence.hosts:
        for process in host.processes:
            if process.letter != "T" and "is stopped (SIGSTOP" not in silent.get(process.address, ""):
                continue
            yield Finding(
                "stopped",
                f"rank {process.rank} of {process.mesh} is stopped (SIGSTOP or Ctrl-Z)",
                [f"pid {process.pid} on host {host.name}: the kernel runs none of its threads"],
                f"`kill -CONT {process.pid}` on {host.name} lets it run again",
                process.mesh,
                [process.rank],
            )


def _silent(evidence: Evidence) -> Iterator[Finding]:
    stopped = {p.address for host in evidence.hosts for p in host.processes if p.letter == "T"}
    known = {p.address: (p, host) for host in evidence.hosts for p in host.processes}
    for process in evidence.second.stacks.processes:
        if process.how != HOW_ITSELF and process.why and process.address not in stopped:
            stack = principal(process)
            yield Finding(
                "wedged",
                f"{_place(process)} does not answer: native code holds its interpreter lock"
                f"{'' if stack is None else f', {where(stack)}'}",
                [process.why, *([] if stack is None else [f"in {stack.endpoint}()"] if stack.endpoint else [])],
                f"`monarch stacks {process.rank} --native` shows the native frames; nothing else of that process runs until "
                f"the call returns, so the call has to let go of the lock",
                process.mesh,
                [process.rank],
            )
    for address, why in evidence.second.stacks.silent.items():
        if address in stopped or "is stopped (SIGSTOP" in why or address not in known:
            continue
        facts, host = known[address]
        state = " It waits in the kernel for a device or a file system." if facts.letter == "D" else ""
        yield Finding(
            "silent",
            f"rank {facts.rank} of {facts.mesh} does not answer",
            [f"{why}.{state}", f"pid {facts.pid} on host {host.name}, {duration(facts.processor)} of processor time"],
            f"`monarch stacks {facts.rank} --native` looks from outside; it is killed after suspect_timeout",
            facts.mesh,
            [facts.rank],
        )


def _in_kernel(evidence: Evidence) -> Iterator[Finding]:
    before = {(process.address, stack.native_id) for process, stack in _threads(evidence.first) if stack.state == "D"}
    for process, stack in _threads(evidence.second):
        if stack.state == "D" and (process.address, stack.native_id) in before:
            yield Finding(
                "device",
                f"{_place(process)} waits in the kernel, for a device or a file system, {where(stack)}",
                [f"thread {stack.thread} ({stack.native_id}) is in state D in both looks"],
                "look at the mounts and devices that it uses (dmesg, nvidia-smi); such a wait cannot be interrupted",
                process.mesh,
                [process.rank],
            )


def _memory(hosts: Iterable[HostUsage]) -> Iterator[Finding]:
    for host in hosts:
        if host.memory and host.available < _LITTLE * host.memory:
            largest = sorted(host.processes, key=lambda process: -process.resident)[:3]
            yield Finding(
                "memory",
                f"host {host.name} has {size(host.available)} of its {size(host.memory)} of memory left",
                [f"rank {p.rank} of {p.mesh} (pid {p.pid}) has {size(p.resident)}" for p in largest],
                "the kernel kills a process when nothing is left: use fewer processes a host, or less in each",
            )


# --- ranks that are not where the others are


def principal(process: ProcessStacks) -> ThreadStack | None:
    """Returns what a process is about: the endpoint that has run longest, else any thread of the program, else an idle
    actor."""
    stacks = process.threads
    running = [stack for stack in stacks if stack.endpoint and not stack.idle]
    if running:
        return max(running, key=lambda stack: stack.seconds)
    return next((stack for stack in stacks if not stack.idle), stacks[0] if stacks else None)


Members = Mapping[int, tuple[str, GroupState]]  # rank in the default group -> its process, what it sees of a group


def _collectives(evidence: Evidence) -> Iterator[Finding]:
    before = _by_group(evidence.first)
    processes = {process.address: process for process in evidence.second.stacks.processes}
    for key, members in _by_group(evidence.second).items():
        dead = _gone(evidence, members)
        if dead:
            yield from _dead_group(evidence, dead, members)
            continue
        most = max(state.begun for _, state in members.values())
        if most == 0 or most != max((state.begun for _, state in before.get(key, {}).values()), default=0):
            continue  # it goes on
        begun = {rank: each for rank, each in members.items() if each[1].begun == most}
        inside = {rank: each for rank, each in begun.items() if _waits_inside(processes.get(each[0]), each[1])}
        if inside:
            found = _missing(most, members, begun, inside, processes) or _mixed(most, inside, processes)
            if found is not None:
                yield found


def _gone(evidence: Evidence, members: Members) -> dict[int, str]:
    """The ranks of a group whose process has ended since the group was made: rank -> "was restarted" or "has ended"."""
    seats = {rank: split_proc_name(name_of(address)) for rank, (address, _) in members.items()}
    starts = {(seat[0], seat[1] - rank) for rank, seat in seats.items() if seat is not None}
    if len(starts) != 1 or None in seats.values():
        return {}  # ranks of the group are no ranks of one mesh: which process is missing is not known
    ((uid, first),) = starts
    silent = {split_proc_name(name_of(address)) for address in evidence.second.stacks.silent}
    answered = {split_proc_name(name_of(address)) for address in evidence.second.groups}
    restarts = {split_proc_name(name_of(p.address)): p.restarts for host in evidence.hosts for p in host.processes}
    found = {}
    for rank in next(iter(members.values()))[1].ranks:
        seat = uid, first + rank
        if rank in members or seat in silent:
            continue
        if seat in answered and restarts.get(seat):
            found[rank] = "restarted"
        elif seat not in restarts and not evidence.unreachable:
            found[rank] = "ended"
    return found


def _dead_group(evidence: Evidence, dead: Mapping[int, str], members: Members) -> Iterator[Finding]:
    """Ranks that wait in a group of which others have died: what they wait for cannot come."""
    before = {process.address: principal(process) for process in evidence.first.stacks.processes}
    processes = {process.address: process for process in evidence.second.stacks.processes}
    waiting: dict[int, str] = {}
    for rank, (address, _) in members.items():
        stack = principal(processes[address]) if address in processes else None
        if stack is not None and _in_torch(stack) and same_place(before.get(address), stack):
            waiting[rank] = address
    if not waiting:
        return
    parts = []
    for how, one, several in (("restarted", "was restarted", "were restarted"), ("ended", "has ended", "have ended")):
        if ranks := [rank for rank, each in dead.items() if each == how]:
            parts.append(f"{called(ranks)} {_verb(ranks, one, several)}")
    left = {rank: address for rank, (address, _) in members.items() if rank not in waiting}
    anyone = processes[next(iter(waiting.values()))]
    yield Finding(
        "collective",
        f"{', '.join(parts)}; {called(list(waiting))} {_verb(waiting, 'waits', 'wait')} in the group that died with "
        f"{_verb(dead, 'it', 'them')}",
        [*_places(waiting, processes, True), *_places(left, processes, True)],
        f"no collective of that group can end any more: restart {called(list(waiting))} (procs.restart(...)), then "
        f"setup_torch_distributed(procs) makes a new group of all",
        anyone.mesh,
        sorted(processes[address].rank for address in waiting.values()),
    )


def _in_torch(stack: ThreadStack) -> bool:
    return not stack.idle and any("/torch/" in frame.file for frame in stack.frames)


def _missing(
    most: int, members: Members, begun: Members, inside: Members, processes: Mapping[str, ProcessStacks]
) -> Finding | None:
    """Some wait in a collective that others have not begun, or of which nothing is known."""
    _, state = next(iter(inside.values()))
    behind = {rank: address for rank, (address, _) in members.items() if rank not in begun}
    unknown = [rank for rank in state.ranks if rank not in members]
    missing = sorted([*behind, *unknown])
    if not missing:
        return None
    places = list(_places(behind, processes, len(missing) > 1))
    if unknown:
        places.append(f"{called(unknown)}: no answer")
    evident = list(_places({rank: address for rank, (address, _) in inside.items()}, processes, True))
    if state.shape:
        evident.append(f"the input of the {state.operation} has the shape {state.shape}")
    for rank in list(behind)[:_SHOWN]:
        late = members[rank][1]
        last = f", the last {late.operation}" if late.operation else ""
        evident.append(f"rank {rank} has begun {late.begun} collectives of that group{last}")
    where_they_are = "; ".join(places)
    return Finding(
        "collective",
        f"{called(list(inside))} {_verb(inside, 'waits', 'wait')} in {state.operation or 'collective'} #{most} of group "
        f"{state.label}; {called(missing)} {_verb(missing, 'has', 'have')} not entered it ({where_they_are})",
        evident,
        f"see why {called(missing)} {_verb(missing, 'is', 'are')} there: `monarch stacks {missing[0]} --locals`. Every rank "
        f"of a group has to begin the same collectives in the same order",
        next((processes[address].mesh for address in behind.values() if address in processes), ""),
        sorted(processes[behind[rank]].rank if behind.get(rank) in processes else rank for rank in missing),
    )


def _mixed(most: int, inside: Members, processes: Mapping[str, ProcessStacks]) -> Finding | None:
    """All are in a collective, but not in the same one."""
    kinds: dict[str, dict[int, str]] = {}
    for rank, (address, state) in inside.items():
        if state.operation:
            kinds.setdefault(state.operation, {})[rank] = address
    if len(kinds) < 2:
        return None
    label = next(iter(inside.values()))[1].label
    parts = [f"{called(list(ranks))} in {operation}" for operation, ranks in kinds.items()]
    return Finding(
        "collective",
        f"the ranks of group {label} are in different collectives #{most}: {', '.join(parts)}",
        [line for ranks in kinds.values() for line in _places(ranks, processes, True)],
        "every rank of a group has to begin the same collectives in the same order: look for a branch that depends on the "
        "rank",
    )


def _verb(ranks: Sized, one: str, several: str) -> str:
    return one if len(ranks) == 1 else several


def _by_group(look: ProgramSample) -> dict[tuple[object, ...], dict[int, tuple[str, GroupState]]]:
    found: dict[tuple[object, ...], dict[int, tuple[str, GroupState]]] = {}
    for address, states in look.groups.items():
        for state in states:
            key = state.world, state.name, tuple(state.ranks)
            found.setdefault(key, {})[state.rank] = address, state
    return {key: dict(sorted(members.items())) for key, members in found.items()}


def _waits_inside(process: ProcessStacks | None, state: GroupState) -> bool:
    """True if a rank that has begun the last collective is still in it. Torch's records do not say that one has failed:
    then the rank is idle."""
    if state.running is None:
        return process is not None and any("/torch/distributed/" in f.file for s in process.threads for f in s.frames)
    stack = principal(process) if process is not None else None
    return state.running and (stack is None or not stack.idle)


def _places(ranks: Mapping[int, str], processes: Mapping[str, ProcessStacks], named: bool) -> Iterator[str]:
    """`rank 63: at data.py:31 in load(), for 41.0 s`, those at one place together; without the ranks unless `named`."""
    at: dict[str, tuple[list[int], float]] = {}
    for rank, address in ranks.items():
        stack = principal(processes[address]) if address in processes else None
        text = "does not answer" if address not in processes else "idle" if stack is None else where(stack)
        ranks_there, seconds = at.get(text, ([], 0.0))
        at[text] = [*ranks_there, rank], max(seconds, 0.0 if stack is None else stack.seconds)
    for text, (those, seconds) in at.items():
        who = f"{called(those)}: " if named else ""
        yield f"{who}{text}{f', for {duration(seconds)}' if seconds >= LONG else ''}"


def _stragglers(evidence: Evidence, covered: set[tuple[str, int]]) -> Iterator[Finding]:
    before = {identity: stack for identity, stack in _identified(evidence.first)}
    standing = {identity for identity, stack in _identified(evidence.second) if same_place(before.get(identity), stack)}
    meshes = {s.key: process.mesh for process in evidence.second.stacks.processes for s in process.threads if s.key}
    actors = evidence.second.stacks.only(lambda process, stack: bool(stack.key))
    for section in folding.fold(actors.processes):
        if section.ranks < 3 or sum(len(group.members) for group in section.groups) != section.ranks:
            continue  # too few to say who is late, or several messages at once in each
        most, *others = section.groups
        if len(most.ranks) < _MAJORITY * section.ranks:
            continue
        late = [group for group in others if len(group.ranks) <= max(1, _FEW * section.ranks) and not group.stack.idle]
        late = [g for g in late if all((g.stack.key, rank) in standing for rank in g.ranks) and g.seconds >= LONG]
        ranks = sorted(rank for group in late for rank in group.ranks)
        mesh = meshes.get(most.stack.key, "")
        if not ranks or all((mesh, rank) in covered for rank in ranks):
            continue
        verb = "is" if len(ranks) == 1 else "are"
        spots = "; ".join(
            f"{called(group.ranks)} {group.where()} for {duration(group.seconds)}" for group in late[:_SHOWN]
        )
        yield Finding(
            "straggler",
            f"{called(ranks)} of {section.title} {verb} not where the others are: {spots}",
            [f"{len(most.ranks)} of {section.ranks} ranks: {most.where()}", f"no move in {duration(evidence.apart)}"],
            f"`monarch stacks {ranks[0]} --locals` shows the variables there",
            section.title,
            ranks,
        )


def _blocking(evidence: Evidence, covered: set[tuple[str, int]]) -> Iterator[Finding]:
    """Async endpoints that have kept their event loop for long with something that sleeps, such as `time.sleep`."""
    before = {
        (stack.key, stack.rank): stack for _, stack in _threads(evidence.first) if stack.endpoint and not stack.task
    }
    handlers = {
        (mesh_in(each.who), each.endpoint, each.rank): each for each in evidence.waits.handlers if each.is_async
    }
    spots: dict[tuple[str, str, str], list[tuple[ProcessStacks, ThreadStack]]] = {}
    for process, stack in _threads(evidence.second):
        long = stack.endpoint and not stack.task and stack.state == "S" and stack.seconds >= LONG
        if not long or _in_torch(stack) or (process.mesh, process.rank) in covered:
            continue
        known = (stack.actor, stack.endpoint, stack.rank) in handlers
        if known and same_place(before.get((stack.key, stack.rank)), stack):
            spots.setdefault((stack.actor, stack.endpoint, where(stack)), []).append((process, stack))
    for (mesh, endpoint, place), there in spots.items():
        ranks = sorted(stack.rank for _, stack in there)
        longest = max(stack.seconds for _, stack in there)
        behind = max(handlers[mesh, endpoint, rank].queued for rank in ranks)
        yield Finding(
            "blocking",
            f"{called(ranks)} of {mesh} {_verb(ranks, 'sleeps', 'sleep')} in an async endpoint, {endpoint}() {place}, for "
            f"{duration(longest)}, without an await: nothing else of the actor runs until that returns. Await something "
            f"there (asyncio.sleep() for time.sleep(), asyncio.to_thread() for what blocks), or make it a plain def",
            [f"no move in {duration(evidence.apart)}, and the thread sleeps", f"{behind} messages wait behind it"],
            f"`monarch stacks {there[0][0].rank} --locals` shows the variables there",
            there[0][0].mesh,
            sorted(process.rank for process, _ in there),
        )


def _identified(look: ProgramSample) -> Iterator[tuple[tuple[str, int], ThreadStack]]:
    for _, stack in _threads(look):
        if stack.key:
            yield (stack.key, stack.rank), stack


def same_place(before: ThreadStack | None, now: ThreadStack) -> bool:
    """True if a thread has not moved between two looks, in the same call of an endpoint."""
    if before is None or before.endpoint != now.endpoint or before.seconds > now.seconds:
        return False
    return [(f.file, f.line, f.function) for f in before.frames] == [(f.file, f.line, f.function) for f in now.frames]


def _threads(look: ProgramSample) -> Iterator[tuple[ProcessStacks, ThreadStack]]:
    for process in look.stacks.processes:
        for stack in process.threads:
            yield process, stack


# --- who waits for whom


def mesh_in(who: str) -> str:
    """The mesh's name in an actor's name, `<root>.<train.Trainer t{'gpus': 0/6}>`: t."""
    found = _MESH.search(who)
    return found[1] if found else who


def _circles(waits: WaitGraph) -> Iterator[Finding]:
    """Actors that wait for each other, where no wait can end but by its time limit: those without one are broken up by
    themselves, after `deadlock_after`."""
    edges: dict[tuple[str, int], list[WaitEdge]] = {}
    for edge in waits.edges:
        if edge.doing:
            edges.setdefault((mesh_in(edge.who), edge.rank), []).append(edge)
    told: set[tuple[str, int]] = set()
    for start in edges:
        circle = _circle(start, edges)
        if circle and not told.intersection(circle):
            told.update(circle)
            lines = [str(edges[node][0]) for node in circle]
            yield Finding(
                "circle",
                f"{len(circle)} actors wait for each other: {' -> '.join(f'{m}[{r}]' for m, r in [*circle, circle[0]])}",
                lines,
                "make the endpoint that is called back a concurrent_endpoint, or do not wait in it",
            )


def _circle(start: tuple[str, int], edges: Mapping[tuple[str, int], Sequence[WaitEdge]]) -> list[tuple[str, int]]:
    """The way from `start` back to it, [] when there is none."""
    came: dict[tuple[str, int], tuple[str, int] | None] = {start: None}
    queue = [start]
    while queue:
        node = queue.pop(0)
        for edge in edges.get(node, ()):
            mesh = edge.target.rpartition(".")[0]
            for rank in edge.ranks:
                there = mesh, rank
                if there == start:
                    way: list[tuple[str, int]] = []
                    back: tuple[str, int] | None = node
                    while back is not None:
                        way.append(back)
                        back = came[back]
                    return way[::-1]
                if there not in came:
                    came[there] = node
                    queue.append(there)
    return []


def _notes(evidence: Evidence) -> Iterator[str]:
    handlers: dict[tuple[str, str, int], RunningHandler] = {}
    for handler in evidence.waits.handlers:
        handlers.setdefault((mesh_in(handler.who), handler.endpoint, handler.rank), handler)
    stacks: dict[tuple[str, str, int], ThreadStack] = {}
    for _, stack in _threads(evidence.second):
        stacks.setdefault((stack.actor, stack.endpoint, stack.rank), stack)
    oldest = next((handler for handler in evidence.waits.handlers if handler.seconds >= LONG), None)
    if oldest is not None:
        yield f"the endpoint that has run longest: {_running(oldest)}"
    told = 0
    for edge in evidence.waits.edges:
        if edge.seconds < LONG or told >= _SHOWN:
            continue
        told += 1
        who = "the program" if edge.who == "<root>" else f"rank {edge.rank} of {mesh_in(edge.who)}"
        mesh, _, method = edge.target.rpartition(".")
        places: dict[str, list[int]] = {}
        for rank in edge.ranks:
            place = stacks.get((mesh, method, rank))
            text = (
                where(place) if place is not None else "not in it" if (mesh, method, rank) not in handlers else "in it"
            )
            places.setdefault(text, []).append(rank)
        spots = "; ".join(f"{called(ranks)} {text}" for text, ranks in list(places.items())[:3])
        yield f"{who} has waited for {edge.target}() for {duration(edge.seconds)}: {spots}"


def _running(handler: RunningHandler) -> str:
    behind = f", {handler.queued} messages wait behind it" if handler.queued else ""
    at = f", at {handler.file.rpartition('/')[2]}:{handler.line} in {handler.function}" if handler.file else ""
    name = mesh_in(handler.who)
    return f"{name}.{handler.endpoint}() of rank {handler.rank} for {duration(handler.seconds)}{at}{behind}"


def _place(process: ProcessStacks) -> str:
    return f"rank {process.rank} of {process.mesh}" if process.mesh else f"the program (pid {process.pid})"
