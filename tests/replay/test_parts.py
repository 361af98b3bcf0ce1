"""Parts of recordings and replays: which actors are recorded, the file, who is trusted, what cannot be replayed."""

from __future__ import annotations

import io
import random
import struct
import sys
import time
import tracemalloc
import types
import uuid
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monarch.actor import Actor, endpoint
from monarch.replay import environment, selection, unrepeatable
from monarch.replay.actor_recorder import RecordingFull, RecordingWriter, make_folder
from monarch.replay.events import (
    MAGIC,
    AnsweredEvent,
    AskedEvent,
    DoneEvent,
    Event,
    Piece,
    RecordedEvent,
    RecordingError,
    SentEvent,
    StartedEvent,
    StoppedEvent,
    encode,
    read,
    summary,
)
from monarch.replay.player import Player
from monarch.replay.replaying import _as_then


@pytest.mark.parametrize(
    ("pattern", "recorded"),
    [
        ("trainers", True), ("Trainer", True), ("train.Trainer", True), ("train*", True), ("all", True),
        ("trainers[3]", True), ("trainers[0-3]", True), ("all[3]", True),
        ("trainers[2]", False), ("trainers[4-9]", False), ("loaders", False), ("trainer", False), ("trainers[x]", False),
    ],
)  # fmt: skip
def test_which_actors_are_meant(pattern: str, recorded: bool) -> None:
    assert selection.matches(pattern, "trainers", "train.Trainer", 3) is recorded


@pytest.mark.parametrize("wanted", ["", "a,,b", "a[", "trainers[x]", "a[1-]"])
def test_what_names_nothing_is_refused(wanted: str) -> None:
    if wanted == "a[":
        selection.check(wanted)  # a name, if an odd one
        return
    with pytest.raises(ValueError, match="names no actors to record"):
        selection.check(wanted)


@given(
    st.lists(st.tuples(st.integers(0, 1 << 40), st.lists(st.binary(max_size=50), max_size=3)), max_size=8), st.data()
)
def test_a_file_gives_back_what_was_written_up_to_any_cut(
    written: list[tuple[int, list[bytes]]], data: st.DataObject
) -> None:
    blob = MAGIC
    ends = [len(blob)]
    for number, pieces in written:
        blob += b"".join(bytes(piece) for piece in encode(StartedEvent(0, number, b"call", ""), list(pieces)))
        ends.append(len(blob))
    cut = data.draw(st.integers(len(MAGIC), len(blob)))
    whole = sum(end <= cut for end in ends) - 1
    events = list(read(io.BytesIO(blob[:cut])))
    expected = [RecordedEvent(StartedEvent(0, number, b"call", ""), list(pieces)) for number, pieces in written[:whole]]
    assert events[:whole] == expected
    assert [type(rest.event) for rest in events[whole:]] == ([] if cut in ends else [StoppedEvent])


@pytest.mark.parametrize("claimed", [1 << 30, (1 << 31) - 1])
def test_a_file_takes_no_more_memory_than_it_has_bytes(tmp_path: Path, claimed: int) -> None:
    """A file, for only its `read` makes room first."""
    path = tmp_path / "claims"
    path.write_bytes(MAGIC + struct.pack("<III", claimed, 0, 10) + b"x" * 1_000)
    with path.open("rb") as file:
        tracemalloc.start()
        try:
            (last,) = read(file)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert isinstance(last.event, StoppedEvent) and most < 1 << 20


@pytest.mark.parametrize("sizes", [[-1], [5, -2], [1 << 40], [1], []])
def test_pieces_that_are_not_there_are_damage(sizes: list[int]) -> None:
    head = msgspec.msgpack.encode([msgspec.to_builtins(StoppedEvent(0, "x")), sizes])
    data = head + b"abc"
    whole = MAGIC + struct.pack("<III", len(data), zlib.crc32(data), len(head)) + data
    (last,) = read(io.BytesIO(whole))
    assert isinstance(last.event, StoppedEvent) and "damaged" in last.event.why


@pytest.mark.parametrize(
    "event", [b"\x93\x0d\x00\xa1\xff", b"\x94\x0d\x00\xa0" + b"\x91" * 200_000 + b"\xc0"], ids=["no text", "too deep"]
)
def test_an_event_that_is_none_is_said(event: bytes) -> None:
    head = b"\x92" + event + b"\x90"
    whole = MAGIC + struct.pack("<III", len(head), zlib.crc32(head), len(head)) + head
    with pytest.raises(RecordingError, match="an event of it cannot be read"):
        list(read(io.BytesIO(whole)))


def test_modules_are_not_looked_for_where_somebody_else_could_put_one(tmp_path: Path) -> None:
    """The folders of the recording may be anybody's by now."""
    own, others = tmp_path / "own", tmp_path / "others"
    for folder, mode in ((own, 0o755), (others, 0o1777)):
        folder.mkdir()
        folder.chmod(mode)
    begin: Any = types.SimpleNamespace(path=["", str(others), str(own), str(tmp_path / "gone")], environment={})
    said: list[str] = []
    before = list(sys.path)
    with _as_then(begin, said.append):
        assert sys.path == [*before, str(own)]
    assert sys.path == before
    (line,) = said
    assert f"modules are not looked for in {others}" in line and "may be written by others" in line


def test_a_writer_stops_at_its_bound_and_ends_with_a_word(tmp_path: Path) -> None:
    writer = RecordingWriter(str(tmp_path), "a/b", 3, 200)
    with pytest.raises(RecordingFull):
        writer.write([(StartedEvent(0, number, b"x" * 30, ""), []) for number in range(10)])
    writer.end(StoppedEvent(0, "enough"))
    writer.end(None)
    path = Path(writer.path)
    assert path.name.startswith("a_b-3-") and path.stat().st_mode & 0o777 == 0o600
    with open(path, "rb") as file:
        events = [recorded.event for recorded in read(file)]
    assert 0 < len(events) - 1 < 10
    assert events[-1] == StoppedEvent(0, "enough")


def test_two_recordings_of_one_name_are_two_files(tmp_path: Path) -> None:
    writers = [RecordingWriter(str(tmp_path), "a", 0, 1000) for _ in range(3)]
    assert len({writer.path for writer in writers}) == 3
    for writer in writers:
        writer.end(None)


def test_a_folder_that_others_may_write_in_is_refused(tmp_path: Path) -> None:
    made = tmp_path / "made"
    make_folder(str(made))
    assert made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o777)
    with pytest.raises(PermissionError, match=r"may be written by others.*setting record_folder"):
        make_folder(str(made))


class Unsteady(Actor):
    @endpoint
    def when(self) -> float:
        return time.monotonic()

    @endpoint
    def who(self) -> str:
        return _name()

    @endpoint
    def read(self, path: str) -> str:
        with open(path) as file:
            return file.read()

    @endpoint
    def steady(self) -> float:
        return random.random()


def _name() -> str:
    return str(uuid.uuid4())


def test_what_cannot_be_replayed_is_found_in_the_code() -> None:
    assert unrepeatable.used_by(Unsteady) == [
        "Unsteady.when uses time.monotonic: the time is not as then",
        "_name uses uuid.uuid4: random bytes of the system are not as then",
        "Unsteady.read uses open(): files are not as then",
    ]


def test_secrets_of_the_environment_are_not_recorded() -> None:
    found = {"RANK": "3", "MONARCH_SECRET": "x", "HF_TOKEN": "y", "OMP_NUM_THREADS": "2", "HOME": "/root"}
    assert environment.environment(found) == {"RANK": "3", "OMP_NUM_THREADS": "2"}


def test_random_numbers_go_on_as_they_would_have() -> None:
    states = environment.rng_state()
    then = [random.random() for _ in range(3)]
    environment.restore_rng_state(states)
    assert [random.random() for _ in range(3)] == then


def test_random_numbers_of_torch_go_on_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(self: torch.Tensor) -> None:
        raise RuntimeError("Numpy is not available")  # as torch says it

    monkeypatch.setattr(torch.Tensor, "numpy", unavailable)
    states = environment.rng_state()
    then = torch.rand(3)
    environment.restore_rng_state(states)
    assert torch.equal(torch.rand(3), then)


def test_differences_are_said() -> None:
    facts = environment.facts() | {"python": "3.10.1"}
    said = environment.differences(facts, {"no_such_package_of_ours": "1.0"})
    assert said[0].startswith("python 3.10.1 then, ")
    assert said[1] == "no_such_package_of_ours 1.0 then, not installed here"


# --- the player


def _asked(method: str, text: bytes, port: int = 0) -> tuple[Event, list[Piece]]:
    size, check, pieces = summary([text])
    return AskedEvent(0, "db", method, 0, [0], port, size, check), pieces


def _show(event: Event, pieces: list[Piece]) -> str:
    return f"it called {event.method}" if isinstance(event, AskedEvent) else type(event).__name__


def _player(events: list[tuple[Event, list[Piece]]], strict: bool = True) -> Player:
    recorded = [RecordedEvent(event, [bytes(piece) for piece in pieces]) for event, pieces in events]
    return Player(iter(recorded), strict, lambda a, b: a == b, _show)


def test_an_answer_is_given_after_what_was_asked_before_it() -> None:
    started, answered, done = (
        StartedEvent(0, 1, b"", ""),
        AnsweredEvent(0, 1, 0, 0),
        DoneEvent(0, 1, "nothing", "", 0, 0),
    )
    player = _player([(started, []), _asked("get", b"1", 1), (answered, [b"2"]), (done, [])])
    assert [given.event for given in player.inputs()] == [started]
    assert player.inputs() == []
    then, divergence = player.output(*_asked("get", b"1"))
    assert then is not None and divergence is None
    assert [given.event for given in player.inputs()] == [answered]
    assert player.ended == ""
    player.output(done, [])
    assert player.inputs() == []
    assert (player.ended, player.started, player.done) == ("the recording ends here", 1, 1)


def test_another_call_is_a_divergence_with_both_sides() -> None:
    player = _player([(StartedEvent(0, 1, b"", ""), []), _asked("get", b"1")])
    player.inputs()
    player.name(1, "step")
    _, divergence = player.output(*_asked("put", b"1"))
    assert str(divergence) == (
        "replay has left the recording at message 1 (step): then it called get, now it called put"
    )


def test_with_an_event_loop_the_order_may_differ_and_is_noted() -> None:
    events = [_asked("a", b""), _asked("b", b""), _asked("c", b"")]
    player = _player(events, strict=False)
    assert player.output(*_asked("b", b""))[1] is None
    assert player.output(*_asked("a", b""))[1] is None
    assert player.output(*_asked("c", b""))[1] is None
    assert player.notes == ["an actor with an event loop did some things in another order than then"]
    strict = _player(events)
    assert strict.output(*_asked("b", b""))[1] is not None


def test_of_what_is_large_only_the_size_of_what_differs_is_known() -> None:
    large = SentEvent(0, 0, 5000, 1)
    player = _player([(large, [])])
    assert player.output(SentEvent(0, 0, 5000, 2), [])[1] is None
    assert "other bytes" in player.notes[0]


def test_beyond_the_recording_nothing_is_compared() -> None:
    player = _player([(StoppedEvent(0, "the disk was full"), [])])
    assert player.inputs() == []
    assert player.output(*_asked("a", b"")) == (None, None)
    assert player.ended == "the recording ends here: the disk was full"


def test_versions_of_modules_are_text_and_nothing_of_them_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Version(str):
        """A version as torch's."""

    class Warns(types.ModuleType):
        def __getattr__(self, name: str) -> str:
            raise AssertionError(f"{name} was asked for")

    monkeypatch.setitem(sys.modules, "with_class", types.ModuleType("with_class"))
    monkeypatch.setattr(sys.modules["with_class"], "__version__", Version("2.13"), raising=False)
    monkeypatch.setitem(sys.modules, "warns", Warns("warns"))
    found = environment.modules()
    assert type(found["with_class"]) is str
    assert found["with_class"] == "2.13"
    assert "warns" not in found
