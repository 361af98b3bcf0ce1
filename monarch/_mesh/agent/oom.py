"""The proof that the kernel killed a process for memory: SIGKILL alone does not say so.

Two witnesses, whichever is there. The kernel's log names the process, but only root may read it, and it speaks of pids as
the outermost namespace counts them. The control group counts its members that were killed, without names; the count is
raised before the signal is sent, the log line may be written after it.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from typing import NamedTuple

from monarch._text import size

_INITIAL_PIDS = "pid:[4026531836]"  # the outermost pid namespace, a constant of the kernel
_RECORDS = 5000  # of the kernel's log, read by one call at most
_RECORD = 8192  # bytes: no record of /dev/kmsg is longer
_KEPT = 256  # kills named in the log and not asked for yet
_NO_LIMIT = 1 << 60  # version 1 writes "no limit" as the largest multiple of a page

_CHOSEN = re.compile(r"oom-kill:constraint=(\w+)")
_KILLED = re.compile(r"[Kk]illed process (\d+) \(.*?\)(?:.*?anon-rss:(\d+)kB)?")


class Kill(NamedTuple):
    """One line of the kernel's log. `group`: whose limit was hit ("" none); `constraint`: what ran out; `held`: bytes."""

    pid: int
    constraint: str = ""
    group: str = ""
    held: int = 0


class MemoryGroup(NamedTuple):
    """Our memory control group: its path, and where its hierarchy is mounted. `version` 1 or 2."""

    version: int
    path: str
    mounted: str

    def folder(self, path: str = "") -> str:
        return self.mounted.rstrip("/") + (path or self.path).rstrip("/")


class OutOfMemory:
    """Tells of kills since it was made. For one thread. `proc` and `log` are where the kernel's files are."""

    def __init__(self, proc: str = "/proc", log: str = "/dev/kmsg") -> None:
        self._proc = proc
        self._group = find_group(_read(f"{proc}/self/cgroup"), _read(f"{proc}/self/mountinfo"))
        self._counter = self._find_counter()
        self._seen = self._count()
        self._unclaimed = 0  # kills in our group that nobody was told of
        self._named: OrderedDict[int, Kill] = OrderedDict()
        self._log = -1
        if _link(f"{proc}/self/ns/pid") == _INITIAL_PIDS:
            self._log = _open_log(log)

    def killed(self, pid: int) -> str:
        """Returns how the kernel killed `pid` for memory; "" when it did not, as far as anybody can tell.

        To be asked once for each process that ended with SIGKILL and that nobody of ours killed. Where only counts can
        be read, a kill of an unknown process of the control group may be taken for this one, and the text says "it
        seems". Never raises, never blocks; reads two small files and at most 5000 records of the log.
        """
        kills = self._read_log()
        for named in kills.values():
            self._named[named.pid] = merge(self._named.pop(named.pid, named), named)
        while len(self._named) > _KEPT:
            self._named.popitem(last=False)
        count = self._count()
        self._unclaimed = max(0, self._unclaimed + count - self._seen - len(kills))
        self._seen = count
        kill = self._named.pop(pid, None)
        if kill is None and self._unclaimed:
            self._unclaimed -= 1
            kill = Kill(0)
        return self._text(kill) if kill is not None else ""

    def close(self) -> None:
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    # --- reading

    def _find_counter(self) -> str:
        """The file that counts kills: of our group, or else of the machine."""
        if self._group is not None:
            path = f"{self._group.folder()}/{_COUNTERS[self._group.version]}"
            if parse_count(_read(path)) is not None:
                return path
        return f"{self._proc}/vmstat"

    def _count(self) -> int:
        return parse_count(_read(self._counter)) or 0

    def _read_log(self) -> dict[int, Kill]:
        kills: dict[int, Kill] = {}
        if self._log < 0:
            return kills
        for _ in range(_RECORDS):
            try:
                record = os.read(self._log, _RECORD)
            except BrokenPipeError:  # it wrapped over our place: the next read is of the oldest record there is
                continue
            except OSError:
                break
            if not record:
                break
            for line in record.decode(errors="replace").splitlines():
                kill = parse_record(line)
                if kill is not None:
                    kills[kill.pid] = merge(kills.get(kill.pid, kill), kill)
        return kills

    def _text(self, kill: Kill) -> str:
        seems = "" if kill.pid else ", it seems"
        held = f"; it held {size(kill.held)}" if kill.held else ""
        return f"killed by the kernel{seems}: out of memory ({self._limit(kill)}{held}; see `dmesg`)"

    def _limit(self, kill: Kill) -> str:
        """Returns what there was too little of."""
        if kill.constraint in ("CPUSET", "MEMORY_POLICY"):
            return "the memory of the NUMA nodes it may use"
        limits: dict[str, int] = {}
        if self._group is not None and kill.constraint in ("", "MEMCG"):
            for path in [kill.group] if kill.group else ancestors(self._group.path):
                limit = parse_limit(_read(f"{self._group.folder(path)}/{_LIMITS[self._group.version]}"))
                if limit is not None:
                    limits[path] = limit
        if limits:
            path = min(limits, key=lambda path: limits[path])
            return f"limit {size(limits[path])} of control group {path}"
        if kill.group:
            return f"the limit of control group {kill.group}"
        total = parse_total(_read(f"{self._proc}/meminfo"))
        return f"the machine has {size(total)}" if total else "the machine's memory"


# --- what the kernel writes, version 1 and 2 of control groups

_COUNTERS = {1: "memory.oom_control", 2: "memory.events"}
_LIMITS = {1: "memory.limit_in_bytes", 2: "memory.max"}


def find_group(cgroup: str, mountinfo: str) -> MemoryGroup | None:
    """Our memory control group, from `/proc/self/cgroup` and `/proc/self/mountinfo`; None when none is mounted."""
    paths: dict[int, str] = {}
    for line in cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            paths[1] = path
        elif number == "0" and not controllers:
            paths[2] = path
    mounts: dict[int, tuple[str, str]] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2":
            mounts.setdefault(2, (fields[3], fields[4]))
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            mounts.setdefault(1, (fields[3], fields[4]))
    for version in (1, 2):
        if version in paths and version in mounts:
            root, mounted = mounts[version]
            return MemoryGroup(version, _below(paths[version], root), mounted)
    return None


def _below(path: str, root: str) -> str:
    """`path` as seen in a mount that shows only what is below `root`."""
    if root == "/":
        return path
    if path == root or path.startswith(root + "/"):
        return path[len(root) :] or "/"
    return "/"  # a namespace hides where we are; its top is what the mount shows


def ancestors(path: str) -> list[str]:
    """Yields `/a/b`, `/a`, `/`."""
    parts = [part for part in path.split("/") if part]
    return ["/" + "/".join(parts[:length]) for length in range(len(parts), -1, -1)]


def parse_count(text: str) -> int | None:
    """The number behind `oom_kill`: in memory.events, memory.oom_control, /proc/vmstat."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None


def parse_limit(text: str) -> int | None:
    """Bytes of memory.max or memory.limit_in_bytes; None when there is no limit."""
    text = text.strip()
    if not text.isdigit() or int(text) >= _NO_LIMIT:
        return None
    return int(text)


def parse_total(meminfo: str) -> int:
    """Bytes of memory of the machine; 0 when unknown."""
    for line in meminfo.splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[0] == "MemTotal:" and fields[1].isdigit():
            return int(fields[1]) * 1024
    return 0


def parse_record(record: str) -> Kill | None:
    """The kill that a line of /dev/kmsg tells of. Two speak of each: who was chosen and why, and what it held.

    None for anything else, and for what a program has written there: only the kernel's own have facility 0.
    """
    head, _, text = record.partition(";")
    priority = head.partition(",")[0]
    if not priority.isdigit() or int(priority) > 7:
        return None
    chosen = _CHOSEN.search(text)
    if chosen is not None:
        fields = dict(field.partition("=")[::2] for field in text[chosen.start() :].split(","))
        pid = fields.get("pid", "")
        if not pid.isdigit():
            return None
        constraint = chosen[1].removeprefix("CONSTRAINT_")
        return Kill(int(pid), constraint, fields.get("oom_memcg", "") if constraint == "MEMCG" else "")
    killed = _KILLED.search(text)
    if killed is not None:
        return Kill(int(killed[1]), held=int(killed[2] or 0) * 1024)
    return None


def merge(first: Kill, second: Kill) -> Kill:
    """Returns what two records of one kill say together."""
    return Kill(
        second.pid,
        second.constraint or first.constraint,
        second.group or first.group,
        second.held or first.held,
    )


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _open_log(path: str) -> int:
    """A descriptor at the end of the log, or -1."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        os.lseek(fd, 0, os.SEEK_END)
    except OSError:
        os.close(fd)
        return -1
    return fd
