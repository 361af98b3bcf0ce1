"""Tests of who was killed by the kernel for memory: what kernels write, and which death it explains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._mesh.agent import oom
from monarch._mesh.agent.oom import Kill, MemoryGroup, OutOfMemory

CGROUP_1 = "9:name=systemd:/\n4:memory:/jobs/7\n1:cpu,cpuacct:/jobs/7\n0::/\n"
CGROUP_2 = "0::/user.slice/app.scope\n"
MOUNTS_1 = (
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)
MOUNTS_2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"

CHOSEN = (
    "6,2211,10457412926,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    "oom_memcg=/jobs/7,task_memcg=/jobs/7/inner,task=python,pid=4711,uid=1000"
)
KILLED = (
    "3,2212,10457412947,-;Memory cgroup out of memory: Killed process 4711 (python) total-vm:900000kB, "
    "anon-rss:520192kB, file-rss:9000kB, shmem-rss:0kB, UID:1000 pgtables:1200kB oom_score_adj:0"
)
GLOBAL = (
    "6,2213,10457412950,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
    "task_memcg=/jobs/7,task=python,pid=4712,uid=0"
)
NODES = GLOBAL.replace("CONSTRAINT_NONE", "CONSTRAINT_CPUSET").replace("4712", "4713")
NOISE = (
    "6,2210,10457412900,-;python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "6,2214,10457413000,-;oom_reaper: reaped process 4711 (python), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    " SUBSYSTEM=memory",
    "14,2215,10457413001,-;Killed process 4711 (a program wrote this line, not the kernel)",
    "6,2216,10457413002,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)",
    "",
)

# --- what kernels write


@pytest.mark.parametrize(
    ("cgroup", "mounts", "expected"),
    [
        (CGROUP_1, MOUNTS_1, MemoryGroup(1, "/jobs/7", "/sys/fs/cgroup/memory")),
        (CGROUP_2, MOUNTS_2, MemoryGroup(2, "/user.slice/app.scope", "/sys/fs/cgroup")),
        # a container that sees its own group only, with and without a namespace
        (CGROUP_2.replace("user", "c"), MOUNTS_2.replace(" / /sys", " /c.slice/app.scope /sys"), "/"),
        (
            CGROUP_2.replace("app.scope", "app.scope/x"),
            MOUNTS_2.replace(" / /sys", " /user.slice/app.scope /sys"),
            "/x",
        ),
        ("0::/\n", MOUNTS_2.replace(" / /sys", " /docker/9f /sys"), "/"),
        (CGROUP_1, MOUNTS_2, MemoryGroup(2, "/", "/sys/fs/cgroup")),  # version 1 is not mounted here
        (CGROUP_2, "", None),
        ("", MOUNTS_2, None),
        ("garbage", "garbage - x\n\n - \n", None),
    ],
)
def test_our_group_is_found_where_it_is_mounted(cgroup: str, mounts: str, expected: Any) -> None:
    found = oom.find_group(cgroup, mounts)
    if isinstance(expected, str):
        assert found == MemoryGroup(2, expected, "/sys/fs/cgroup")
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", 3),
        ("low 0\nhigh 0\nmax 81\noom 2\noom_kill 1\noom_group_kill 0\n", 1),
        ("pgfault 99\noom_kill 0\npgreuse 7\n", 0),
        ("oom_kill_disable 0\nunder_oom 0\n", None),  # kernels before 4.13
        ("oom_kill many\n", None),
        ("", None),
    ],
)
def test_the_count_of_kills(text: str, count: int | None) -> None:
    assert oom.parse_count(text) == count


@pytest.mark.parametrize(
    ("text", "limit"),
    [("536870912\n", 536870912), ("max\n", None), ("9223372036854771712\n", None), ("", None), ("0\n", 0)],
)
def test_the_limit(text: str, limit: int | None) -> None:
    assert oom.parse_limit(text) == limit


@pytest.mark.parametrize(
    ("line", "kill"),
    [
        (CHOSEN, Kill(4711, "MEMCG", "/jobs/7")),
        (KILLED, Kill(4711, held=520192 * 1024)),
        (GLOBAL, Kill(4712, "NONE")),
        (NODES, Kill(4713, "CPUSET")),
        (
            "3,1,2,-;Out of memory: Killed process 12 (a b) (c) total-vm:1kB, anon-rss:2kB, file-rss:3kB",
            Kill(12, held=2048),
        ),
        ("3,1,2,-;Killed process 12 (python)", Kill(12)),
        (CHOSEN.replace("task=python", "task=x,pid=1,y"), Kill(4711, "MEMCG", "/jobs/7")),  # a name with commas
        *((line, None) for line in NOISE),
    ],
)
def test_a_line_of_the_log(line: str, kill: Kill | None) -> None:
    assert oom.parse_record(line) == kill


@given(st.text())
def test_no_text_breaks_a_parser(text: str) -> None:
    oom.parse_record(text)
    oom.parse_record(f"6,1,2,-;{text}")
    oom.parse_record(f"6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,{text}")
    oom.find_group(text, text)
    assert oom.parse_count(text) is None or "oom_kill" in text
    oom.parse_limit(text)
    oom.parse_total(text)


def test_the_groups_above_a_group() -> None:
    assert oom.ancestors("/a/b") == ["/a/b", "/a", "/"]
    assert oom.ancestors("/") == ["/"]


# --- which death is explained


class Machine:
    """A kernel's files below `folder`: one memory control group, version 2, and the log."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.groups = folder / "groups"
        self.log = folder / "kmsg"
        self.kills = 0
        (self.proc / "self" / "ns").mkdir(parents=True)
        (self.groups / "jobs" / "7").mkdir(parents=True)
        (self.proc / "self" / "cgroup").write_text("0::/jobs/7\n")
        (self.proc / "self" / "mountinfo").write_text(f"30 23 0:26 / {self.groups} rw - cgroup2 cgroup2 rw\n")
        (self.proc / "self" / "ns" / "pid").symlink_to("pid:[4026531836]")
        (self.proc / "meminfo").write_text("MemTotal:       16777216 kB\nMemFree: 1 kB\n")
        (self.proc / "vmstat").write_text("pgfault 1\noom_kill 0\n")
        self.write_limits("max", "536870912", "1073741824")
        self.log.write_text(f"{KILLED}\n")  # of an earlier day
        self.count(0)

    def write_limits(self, *limits: str) -> None:
        for folder, limit in zip(("jobs/7", "jobs", "."), limits, strict=True):
            (self.groups / folder / "memory.max").write_text(f"{limit}\n")

    def count(self, kills: int) -> None:
        """So many more were killed in our group."""
        self.kills += kills
        (self.groups / "jobs" / "7" / "memory.events").write_text(f"oom 1\noom_kill {self.kills}\n")

    def say(self, *lines: str) -> None:
        with self.log.open("a") as file:
            file.writelines(line + "\n" for line in lines)

    def hide_log(self) -> None:
        self.log.unlink()

    def hide_groups(self) -> None:
        (self.proc / "self" / "mountinfo").write_text("")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def look(machine: Machine) -> Iterator[Callable[[], OutOfMemory]]:
    made: list[OutOfMemory] = []

    def make() -> OutOfMemory:
        made.append(OutOfMemory(str(machine.proc), str(machine.log)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_log_names_the_process_the_limit_and_what_it_held(machine: Machine, look: Any) -> None:
    memory = look()
    machine.count(1)
    machine.say(NOISE[0], CHOSEN.replace("oom_memcg=/jobs/7", "oom_memcg=/jobs"), KILLED, *NOISE[1:])
    said = "killed by the kernel: out of memory (limit 512 MiB of control group /jobs; it held 508 MiB; see `dmesg`)"
    assert memory.killed(4711) == said
    assert memory.killed(4711) == ""  # told once


def test_what_was_killed_before_explains_nothing(look: Any) -> None:
    assert look().killed(4711) == ""


def test_a_kill_of_another_process_explains_nothing(machine: Machine, look: Any) -> None:
    memory = look()
    machine.count(1)
    machine.say(CHOSEN, KILLED)
    assert memory.killed(99) == ""
    assert memory.killed(4711) != ""


def test_a_count_that_grew_explains_a_death_before_the_log_does(machine: Machine, look: Any) -> None:
    memory = look()
    machine.count(1)
    assert "it seems: out of memory (limit 512 MiB of control group /jobs;" in memory.killed(4711)
    machine.say(CHOSEN, KILLED)
    assert memory.killed(99) == ""
    machine.count(1)
    machine.say(KILLED.replace("4711", "99"))
    assert "it held 508 MiB" in memory.killed(99)


def test_a_count_explains_as_many_deaths_as_it_grew_by(machine: Machine, look: Any) -> None:
    machine.hide_log()
    memory = look()
    assert memory.killed(1) == ""
    machine.count(2)
    assert [bool(memory.killed(pid)) for pid in (1, 2, 3)] == [True, True, False]
    machine.count(1)
    assert [bool(memory.killed(pid)) for pid in (4, 5)] == [True, False]


def test_a_log_of_another_namespace_is_not_read(machine: Machine, look: Any) -> None:
    (machine.proc / "self" / "ns" / "pid").unlink()
    (machine.proc / "self" / "ns" / "pid").symlink_to("pid:[4026532999]")
    memory = look()
    machine.say(CHOSEN, KILLED)
    assert memory.killed(4711) == ""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (GLOBAL, "out of memory (the machine has 16.0 GiB; see `dmesg`)"),
        (NODES, "out of memory (the memory of the NUMA nodes it may use; see `dmesg`)"),
        (CHOSEN.replace("/jobs/7", "/elsewhere"), "out of memory (the limit of control group /elsewhere; see `dmesg`)"),
    ],
)
def test_what_there_was_too_little_of(machine: Machine, look: Any, line: str, expected: str) -> None:
    memory = look()
    machine.say(line)
    pid = oom.parse_record(line)
    assert pid is not None
    assert memory.killed(pid.pid) == f"killed by the kernel: {expected}"


def test_without_limits_the_machine_was_full(machine: Machine, look: Any) -> None:
    machine.write_limits("max", "max", "max")
    machine.hide_log()
    memory = look()
    machine.count(1)
    assert "the machine has 16.0 GiB" in memory.killed(1)


def test_without_groups_the_kernels_own_count_is_taken(machine: Machine, look: Any) -> None:
    machine.hide_groups()
    machine.hide_log()
    memory = look()
    (machine.proc / "vmstat").write_text("oom_kill 1\n")
    assert "the machine has 16.0 GiB" in memory.killed(1)
    assert memory.killed(2) == ""


def test_where_nothing_can_be_read_nothing_is_said(tmp_path: Path) -> None:
    memory = OutOfMemory(str(tmp_path / "no"), str(tmp_path / "no"))
    assert memory.killed(1) == ""
    memory.close()


def test_files_that_vanish_later_explain_nothing(machine: Machine, look: Any) -> None:
    memory = look()
    machine.count(1)
    (machine.groups / "jobs" / "7" / "memory.events").unlink()
    assert memory.killed(1) == ""


def test_kills_of_strangers_are_forgotten(machine: Machine, look: Any) -> None:
    memory = look()
    machine.say(*(f"3,1,2,-;Killed process {pid} (x)" for pid in range(1, 401)))
    for _ in range(3):  # a read takes one record of the kernel's log, and a few kilobytes of this file
        assert memory.killed(9999) == ""
    assert [bool(memory.killed(pid)) for pid in (1, 100, 300, 400)] == [False, False, True, True]


def test_on_this_machine_nobody_was_killed_for_memory() -> None:
    memory = OutOfMemory()
    assert memory.killed(2**22 + 1) == ""  # above the largest pid there can be
    memory.close()
