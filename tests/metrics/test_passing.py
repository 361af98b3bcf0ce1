"""Values of scripts that `monarch run` has started: over a socket to the process that records."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

import pytest

from monarch._runtime import recorder
from monarch.metrics import passing
from monarch.metrics.passing import PassingSink
from monarch.telemetry.runs import read_run
from tests.support.scripts import Scripts
from tests.support.tiers import full


class Recording(recorder.Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.came = threading.Event()

    def add(self, event: tuple[object, ...]) -> None:
        super().add(event)
        self.came.set()


def test_what_a_script_logs_is_recorded_with_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording()
    monkeypatch.setattr(recorder, "active", recording)
    theirs = passing.received(3)
    assert theirs is not None
    with theirs:
        PassingSink(theirs)(7, (("loss", 0.5), ("n", float("inf"))), "client", 0)
        assert recording.came.wait(60)
    ((kind, *event, _),) = recording.take(10)
    assert kind == recorder.LOGGED and event == [7, (("loss", 0.5), ("n", float("inf"))), "ranks", 3]


def test_names_of_a_script_are_bounded_however_it_sends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "NAMES", 3)
    recording = recorder.Recorder()
    monkeypatch.setattr(recorder, "active", recording)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.send(passing._encode((1, [("x" * 100_000, 1.0)])))
        for number in range(9):
            theirs.send(passing._encode((2, [(f"n{number}", 1.0), ("n0", 2.0)])))
        theirs.send(passing._encode((2**63, [("n0", 1.0)])))
        passing._take(ours, 3)
    logged = [event[2] for event in recording.take(20)]
    names = {name for pairs in logged for name, _ in pairs}
    assert {"n0", "n1"} < names and len(names) == 3 and max(map(len, names)) == 200
    assert [len(pairs) for pairs in logged] == [1, 2, 2, *[1] * 7]


def test_what_is_not_understood_ends_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(recorder, "active", recorder.Recorder())
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.send(b"\xc1")
        passing._take(ours, 3)
    assert "what rank 3 has sent is not understood" in caplog.text and recorder.active.take(9) == []


def test_nothing_waits_for_who_does_not_read(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        sink = PassingSink(theirs)
        for step in range(10_000):
            sink(step, (("loss", 0.5),), "client", 0)
    assert [record.getMessage().removeprefix("[actor=<root>] ") for record in caplog.records] == [
        "monarch.metrics: values are logged faster than they are taken, and some are dropped"
    ]


def test_nobody_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "active", None)
    assert passing.received(0) is None


@pytest.mark.parametrize("value", ["", "x", "-1", "99999", "-1:1", "99999:1", "1" * 40 + ":1", "0:", ":", "²:²"])
def test_what_is_not_inherited_is_not_used(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(passing.VARIABLE, value)
    assert passing.inherited() is None


def test_a_file_in_its_place_is_not_written_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with open(tmp_path / "x", "w") as file:
        inode = os.fstat(file.fileno()).st_ino
        for value in (str(file.fileno()), f"{file.fileno()}:{inode}"):
            monkeypatch.setenv(passing.VARIABLE, value)
            assert passing.inherited() is None


def test_a_socket_of_ones_own_in_its_place_is_not_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper of a script has its environment and not its descriptors: that number may be a connection to a database."""
    theirs, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mine, peer = socket.socketpair()
    with theirs, other, mine, peer:
        variable = passing.variables(theirs)[passing.VARIABLE]
        _, _, inode = variable.partition(":")
        for value in (str(mine.fileno()), f"{mine.fileno()}:{inode}"):
            monkeypatch.setenv(passing.VARIABLE, value)
            assert passing.inherited() is None
        monkeypatch.setenv(passing.VARIABLE, variable)
        sink = passing.inherited()
        assert sink is not None
        sink(7, (("loss", 0.5),), "client", 0)
        assert passing._decode(other.recv(100)) == (7, [("loss", 0.5)])
        sink._sock.detach()
        peer.setblocking(False)
        with pytest.raises(BlockingIOError):
            peer.recv(1)


@full
def test_a_script_of_monarch_run_keeps_its_metrics(scripts: Scripts) -> None:
    (scripts.folder / "train.py").write_text(
        "import os, monarch.metrics\nfor n in range(5):\n    monarch.metrics.log(step=n, loss=int(os.environ['RANK']))\n"
    )
    scripts.run(
        "import sys; from monarch.tools.cli import main; sys.exit(main(sys.argv[1:]))",
        *["run", "--nproc-per-node", "2", "--keep-metrics", "runs", "train.py"],
    )
    (name,) = os.listdir(scripts.folder / "runs")
    (curve,) = read_run(str(scripts.folder / "runs" / name)).curves
    assert (curve.mesh, curve.name, curve.steps) == ("ranks", "loss", [0, 1, 2, 3, 4])
    assert curve.mean == [0.5] * 5 and json.dumps(curve.most_rank) == "[1, 1, 1, 1, 1]"
