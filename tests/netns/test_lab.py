"""The lab itself: hosts talk, trouble is real and ends, and nothing is left."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.netns.lab import NAMESPACES, ROOT, Host, Lab, LabError, remove_leftovers, why_not
from tests.support.tiers import full

pytestmark = pytest.mark.netns


def listen(host: Host, address: str) -> str:
    """Starts echo.py; its port."""
    server = host.popen(host.program("echo.py", address))
    assert server.stdout is not None
    word, _, port = server.stdout.readline().split()
    assert word == "listening"
    return port


class Talk:
    """talk.py on a host."""

    def __init__(self, host: Host, address: str, port: str) -> None:
        self.process = host.popen(host.program("talk.py", address, port))
        assert self._line() == "connected"

    def __call__(self, command: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")


def interfaces() -> set[str]:
    done = subprocess.run(["ip", "-j", "link"], capture_output=True, check=True, timeout=30)
    return {link["ifname"] for link in json.loads(done.stdout)}


def namespaces() -> set[str]:
    return set(os.listdir(NAMESPACES)) if NAMESPACES.is_dir() else set()


def runs(pid: int) -> bool:
    """Returns whether it does: one that ended and whose parent has not noticed yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


# --- Talking.


def test_every_host_has_a_network_of_its_own(lab: Lab) -> None:
    for host in lab.hosts:
        shown = json.loads(host.run(["ip", "-j", "addr"]).stdout)
        assert [link["ifname"] for link in shown] == ["lo", "eth0"]
        addresses = {address["local"] for link in shown for address in link["addr_info"]}
        assert {"127.0.0.1", "::1", host.address, host.address6} <= addresses
    # Loopback is a host's own.
    port = listen(lab.hosts[1], "127.0.0.1")
    assert Talk(lab.hosts[1], "127.0.0.1", port)("ask hello") == "hello"
    other = lab.hosts[0]
    refused = other.run(other.program("talk.py", "127.0.0.1", port), check=False)
    assert "ConnectionRefusedError" in refused.stderr


def test_hosts_reach_each_other_from_their_own_addresses(lab: Lab) -> None:
    for family in ("address", "address6"):
        there = getattr(lab.hosts[2], family)
        port = listen(lab.hosts[2], there)
        for host in lab.hosts[1:]:
            talk = Talk(host, there, port)
            assert talk("ask hello") == "hello"
            assert talk("from") == getattr(host, family)


def test_two_labs_do_not_meet(lab: Lab) -> None:
    port = listen(lab.hosts[1], lab.hosts[1].address)
    with Lab(hosts=2) as other:
        client = other.hosts[0]
        done = client.run(client.program("talk.py", other.hosts[1].address, port), check=False)
        assert done.returncode == 1
        assert "ConnectionRefusedError" in done.stderr


# --- Trouble.


@full
@pytest.mark.parametrize(("who", "how"), [(1, "down"), (0, "drop")])
def test_a_stream_stops_while_a_host_is_cut_and_goes_on_after(lab: Lab, who: int, how: str) -> None:
    port = listen(lab.hosts[1], lab.hosts[1].address)
    talk = Talk(lab.hosts[0], lab.hosts[1].address, port)
    bystander = Talk(lab.hosts[2], lab.hosts[1].address, port)
    assert talk("ask one") == "one"
    lab.cut(who, how=how)
    assert talk("send two") == "sent"
    assert talk("stuck") == "stuck"
    if who == 0:
        assert bystander("ask me") == "me"
    lab.heal(who)
    assert talk("hear") == "two"
    assert talk("ask three") == "three"
    assert bystander("ask again") == "again"


@full
def test_two_hosts_apart_still_talk_to_a_third(lab: Lab) -> None:
    port, port6 = (listen(lab.hosts[1], address) for address in (lab.hosts[1].address, lab.hosts[1].address6))
    apart = Talk(lab.hosts[0], lab.hosts[1].address, port)
    apart6 = Talk(lab.hosts[0], lab.hosts[1].address6, port6)
    third = Talk(lab.hosts[2], lab.hosts[1].address, port)
    lab.separate(0, 1)
    for talk in (apart, apart6):
        assert talk("send over") == "sent"
        assert talk("stuck") == "stuck"
    assert third("ask me") == "me"
    lab.rejoin(0, 1)
    assert apart("hear") == "over"
    assert apart6("hear") == "over"


def test_a_proxy_makes_the_way_longer(lab: Lab) -> None:
    port = listen(lab.hosts[1], lab.hosts[1].address)
    host, _, port = lab.proxy(1, f"{lab.hosts[1].address}:{port}", delay=0.03).rpartition(":")
    assert host == lab.hosts[1].address
    talk = Talk(lab.hosts[0], host, port)
    before = time.monotonic()
    assert talk("ask far") == "far"
    assert time.monotonic() - before >= 0.06


def test_trouble_that_makes_no_sense_is_refused(lab: Lab) -> None:
    with pytest.raises(ValueError, match="how='gently'; known: 'down', 'drop'"):
        lab.cut(0, how="gently")
    with pytest.raises(LabError, match="host 0 is not cut"):
        lab.heal(0)
    lab.cut(0, how="drop")
    with pytest.raises(LabError, match=r"already cut \(drop\)"):
        lab.cut(0)
    with pytest.raises(ValueError, match="1 to 200 hosts, not 0"):
        Lab(hosts=0)


# --- Programs.


def test_a_program_runs_in_the_tree_with_a_folder_of_its_own_and_all_it_wrote_is_kept(lab: Lab) -> None:
    host = lab.hosts[1]
    code = "import os, sys, tests.netns, monarch; print(os.environ['MONARCH_RUNTIME_DIR'], os.environ['A'], sys.stdin.read())"
    done = host.run(host.python("-c", code), env={"A": "b"}, input="c")
    assert done.stdout.split() == [str(host.folder), "b", "c"]
    assert host.popen(["sh", "-c", "echo trouble >&2"]).wait(30) == 0
    assert host.log.read_text() == "trouble\n"


def test_a_program_that_fails_shows_all_it_wrote_and_one_that_does_not_end_is_killed_with_its_children(
    lab: Lab,
) -> None:
    host = lab.hosts[0]
    with pytest.raises(AssertionError, match=r"(?s)on <Host 0 10\.77\.0\.1> ended with 3.*out.*err"):
        host.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert host.run(["sh", "-c", "exit 3"], check=False).returncode == 3
    with pytest.raises(AssertionError, match=r"(?s)did not end within 0\.1 s"):
        host.run(["sh", "-c", "sleep 1000 & sleep 1000"], timeout=0.1)


ESCAPES = "setsid sh -c 'echo $$; exec sleep 1000' & wait"


def test_killing_a_host_leaves_none_of_its_processes(lab: Lab) -> None:
    process = lab.hosts[0].popen(["sh", "-c", ESCAPES])
    other = lab.hosts[1].popen(["sleep", "1000"])
    assert process.stdout is not None
    escaped = int(process.stdout.readline())
    assert {process.pid, escaped} <= set(lab.hosts[0].pids())
    lab.hosts[0].kill()
    assert process.returncode == -signal.SIGKILL
    assert not runs(escaped)
    assert other.poll() is None


# --- Nothing is left.


def test_a_reset_lab_is_as_new(lab: Lab) -> None:
    zero, one, two = lab.hosts
    sleeper = one.popen(["sleep", "1000"])
    one.run(["sh", "-c", "echo x > kept; echo y >&2"])
    lab.cut(0)
    lab.cut(1, how="drop")
    lab.separate(0, 2)
    lab.reset()
    assert sleeper.returncode == -signal.SIGKILL
    assert os.listdir(one.folder) == []
    assert Talk(zero, two.address6, listen(two, two.address6))("ask me") == "me"
    assert Talk(one, zero.address, listen(zero, zero.address))("ask me") == "me"


def test_a_closed_lab_leaves_nothing() -> None:
    links, descriptors = interfaces(), len(os.listdir("/proc/self/fd"))
    with Lab(hosts=2) as lab:
        process = lab.hosts[0].popen(["sh", "-c", ESCAPES])
        assert process.stdout is not None
        escaped = int(process.stdout.readline())
        assert namespaces() >= set(lab.namespaces)
        assert interfaces() == links
        lab.cut(1)
    assert not runs(escaped)
    assert not namespaces() & set(lab.namespaces)
    assert interfaces() == links
    assert not lab.hosts[0].folder.parent.exists()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    lab.close()


HOLDER = """
import os, sys
from tests.netns.lab import Lab
with Lab(hosts=2) as lab:
    process = lab.hosts[1].popen(["sleep", "1000"])
    print(lab._keeper.pid, process.pid, lab.hosts[0].folder.parent, *lab.namespaces, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("keeper_too", [False, True])
def test_a_killed_process_leaves_nothing(keeper_too: bool) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as holder:
        assert holder.stdout is not None
        keeper, sleeper, folder, *names = holder.stdout.readline().split()
        assert namespaces() >= set(names)
        watched = os.pidfd_open(int(keeper))
        try:
            if keeper_too:
                signal.pidfd_send_signal(watched, signal.SIGKILL)
            holder.kill()
            holder.wait()
            assert select.select([watched], [], [], 30)[0]
        finally:
            os.close(watched)
    if keeper_too:
        remove_leftovers()
    assert not namespaces() & set(names)
    assert not runs(int(sleeper))
    assert not os.path.exists(folder)


def test_a_lab_that_cannot_be_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(hosts=2)
    subprocess.run(["ip", "netns", "add", lab.namespaces[-1]], check=True, timeout=30)
    with pytest.raises(LabError, match="File exists"):
        lab.__enter__()
    assert not namespaces() & set(lab.namespaces)
    assert not lab.hosts[0].folder.parent.exists()


def test_a_lab_outlives_its_keeper() -> None:
    with Lab(hosts=2) as lab:
        assert lab._keeper is not None
        lab._keeper.kill()
    assert not namespaces() & set(lab.namespaces)


def test_why_there_can_be_no_lab_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not() is None
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        assert "needs the program ip" in str(why_not())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in str(why_not())
