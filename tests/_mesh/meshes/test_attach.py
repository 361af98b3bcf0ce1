"""Tests of what attaching makes of addresses and answers, and what a host makes of a spec that another has sent; no
processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from monarch._mesh.meshes import attaching as waiting
from monarch._mesh.meshes.attach import Attaching, Workers
from monarch._mesh.start import agent_process, launch, launch_spec
from monarch._runtime.future import Done, Future, Slot, make_future
from monarch._wire import os_text
from monarch._wire.address import agent_at
from monarch._wire.message import AttachedHost, Command, EnvChange, LaunchSpec, ProcEnded
from monarch.config import configure

A, B = "tcp://a:1", "ipc:///tmp/b"


def future(value: Any) -> Future[Any]:
    return make_future(Done(value))


# --- addresses


def test_futures_are_waited_for_and_the_rest_are_known_at_once() -> None:
    assert Workers([A, B]).complete
    workers = Workers([A, future(B)])
    assert not workers.complete and len(workers) == 2
    assert list(workers) == [A, B] and workers[1] == B and workers.complete


def test_what_is_dialled_counts() -> None:
    assert list(Workers([f"{A}@tcp://*:9", "tcp://A:2", future("tcp://[::1]:7@tcp://*:7")])) == [
        A,
        "tcp://a:2",
        "tcp://[::1]:7",
    ]


def test_a_host_is_in_a_mesh_once() -> None:
    with pytest.raises(ValueError, match="twice: tcp://a:1"):
        Workers([A, B, f"{A}@tcp://*:9"])
    with pytest.raises(ValueError, match="twice: tcp://a:1"):
        Workers([A, future(A)]).resolve()


def test_futures_that_give_no_address() -> None:
    with pytest.raises(TypeError, match="worker 1 gave 7, which is not an address"):
        Workers([A, future(7)]).resolve()
    with pytest.raises(ValueError, match="not the address of a host"):
        Workers([future("nonsense")]).resolve()
    with pytest.raises(KeyError):
        Workers([future(KeyError("theirs"))]).resolve()
    configure(mesh_attach_config_timeout="10ms")
    with pytest.raises(TimeoutError, match=r"worker 1 was not known within 0.01 s .*mesh_attach_config_timeout"):
        Workers([A, make_future(Slot())]).resolve()


def test_an_address_that_comes_late_is_checked_as_the_others_are() -> None:
    seen: list[Any] = []

    def refuse(addresses: Any) -> None:
        seen.extend(addresses)
        raise ValueError("no certificates")

    with pytest.raises(ValueError, match="no certificates"):
        Workers([A, future("w@tls://b:2")], refuse).resolve()
    assert seen == ["w@tls://b:2"]  # as it was given: what it is called by has no scheme


# --- answers


class FakeLoop:
    def call_later(self, delay: float, fn: Any) -> Any:
        self.fire = fn
        return self

    def cancel(self) -> None:
        pass


class FakeProc:
    """Takes what is posted."""

    def __init__(self) -> None:
        self.ports = self
        self.loop = FakeLoop()
        self.suspected: dict[str, str] = {}
        self.posted: list[tuple[str, Any]] = []

    def add(self, entry: Any) -> int:
        entry.table = {5: entry}
        entry.number = 5
        return 5

    def post(self, address: str, msg: Any) -> None:
        self.posted.append((address, msg))


def asked() -> tuple[Attaching, FakeProc]:
    proc: Any = FakeProc()
    attaching = Attaching(proc, [A, B])
    attaching.ask({"X": "1"})
    return attaching, proc


def answer(attaching: Attaching, rank: int) -> AttachedHost:
    facts = AttachedHost(f"host{rank}", 7, "3.11")
    attaching.receive((rank, 0, msgspec.msgpack.encode(facts), ()))
    return facts


def test_every_host_is_asked_and_has_to_answer() -> None:
    attaching, proc = asked()
    told = [(address, os_text.decode(msg.env, dict[str, str]), msg.port, msg.rank) for address, msg in proc.posted]
    assert told == [(agent_at(A), {"X": "1"}, 5, 0), (agent_at(B), {"X": "1"}, 5, 1)]
    first = answer(attaching, 1)
    assert not attaching.ready and attaching.unanswered() == [0]
    assert [answer(attaching, 0), first] == attaching.value() and attaching.ready


def test_a_host_that_cannot_be_attached_is_named_with_the_reason() -> None:
    attaching, _ = asked()
    assert attaching.target is not None
    ended = ProcEnded(agent_at(B), 0, 1, False, [], "nobody listens there")
    attaching.fail(attaching.target.failure_of(agent_at(B), ended))
    with pytest.raises(
        RuntimeError, match=f"^attach failed: config push failed during attach to {B}: nobody listens there$"
    ):
        attaching.value()
    attaching.give_up(ValueError("too late"))
    with pytest.raises(RuntimeError):
        attaching.value()


def test_hosts_that_say_nothing_are_named() -> None:
    attaching, proc = asked()
    answer(attaching, 0)
    proc.loop.fire()
    with pytest.raises(RuntimeError, match=f"attach failed: config push .* to {B}: .*mesh_attach_config_timeout"):
        attaching.value()


def test_a_host_that_cannot_be_reached_yet_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(waiting, "log", lambda logger, level, text, *args: said.append(text % args))
    attaching, _ = asked()
    attaching.suspected(agent_at(B), "nobody knows its name")
    assert said == [
        f"host {B} (rank 1 of 2 in the mesh of attach_to_workers) cannot be reached yet: nobody knows its name"
    ]
    attaching.suspected(agent_at(B), "")
    answer(attaching, 1)
    attaching.suspected(agent_at(B), "its connection broke")  # which is no matter of attaching
    assert len(said) == 1

    proc: Any = FakeProc()
    proc.suspected[agent_at(A)] = "nobody knows its name"  # another has attached to it
    Attaching(proc, [A, B]).ask({})
    assert len(said) == 2 and f"host {A} (rank 0 of 2" in said[1]


# --- a spec from another host


def spec(**changes: Any) -> LaunchSpec:
    made = LaunchSpec("procs", {}, "/", [], "", b"", True, False, [], False)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_the_environment_is_the_hosts_with_changes() -> None:
    command = Command("python", None, [], {}, EnvChange({"B": "command", "C": None}))
    alone = Command("python", None, [], {}, EnvChange({"B": "alone"}, inherit=False))
    change = EnvChange({"B": "spawn", "D": "new", "A": None, "unknown": None})
    made = spec(change=change, commands=[command, None, alone])
    launch.adapt_spec(made, {"A": "host", "B": "host", "C": "host"})
    assert made.env == {"B": "spawn", "C": "host", "D": "new"}
    assert command.env == {"B": "command", "D": "new"}
    assert alone.env == {"B": "alone"}


def test_folders_that_are_not_on_this_host_are_left_out(tmp_path: Path) -> None:
    here, gone = str(tmp_path), str(tmp_path / "gone")
    made = spec(cwd=here, path=[here, gone])
    launch.adapt_spec(made, {})
    assert made.cwd == made.path[0] == here
    assert gone not in made.path and made.path.count(here) == 1
    assert set(filter(None, sys.path)) <= set(made.path)
    made = spec(cwd=gone, path=[gone, here])
    launch.adapt_spec(made, {})
    assert made.cwd == made.path[0] == os.getcwd() and made.path[-1] == here


def test_processes_import_nothing_from_a_folder_that_others_write_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless their program does: it is a script of another folder, run in this one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/lib"])
    assert launch_spec.launch_spec("", {}, "", gated=False).path == [str(tmp_path), "/lib"]
    tmp_path.chmod(0o1777)
    assert launch_spec.launch_spec("", {}, "", gated=False).path == ["/lib"]
    made = spec(cwd=str(tmp_path), path=["/lib"])
    launch.adapt_spec(made, {})
    assert str(tmp_path) not in made.path
    made = spec(cwd="/gone", path=["/gone", "/lib"])
    launch.adapt_spec(made, {})
    assert str(tmp_path) not in made.path
    monkeypatch.setattr(sys, "path", ["/lib", ""])
    assert launch_spec.launch_spec("", {}, "", gated=False).path == ["/lib", str(tmp_path)], "where the program has it"
    made = spec(cwd=str(tmp_path), path=["/lib", str(tmp_path)])
    launch.adapt_spec(made, {})
    assert made.path[0] != str(tmp_path) and made.path[-1] == str(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "/lib"])
    assert launch_spec.launch_spec("", {}, "", gated=False).path == [str(tmp_path), "/lib"]
    made = spec(cwd=str(tmp_path), path=[str(tmp_path), "/lib"])
    launch.adapt_spec(made, {})
    assert made.path[0] == str(tmp_path)


# --- starting an agent


def test_descriptors_that_are_handed_down(tmp_path: Path) -> None:
    assert agent_process._inherited("") == agent_process._inherited("ipc:///tmp/fd7") == []
    with (tmp_path / "file").open("w") as file:
        assert agent_process._inherited(f"tcp://127.0.0.1:fd{file.fileno()}") == [file.fileno()]
    with pytest.raises(OSError, match="descriptor 987 is not open in this process"):
        agent_process._inherited("tcp://127.0.0.1:fd987")
