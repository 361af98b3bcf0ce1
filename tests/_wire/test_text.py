"""Text made fit to send, and that no message carries any other."""

from __future__ import annotations

import os
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch import _text
from monarch._errors import format_remote
from monarch._mesh.failures.activity import RunningHandler, WaitEdge
from monarch._text import NAME_LIMIT, TEXT_LIMIT, clip, sendable, text_of
from monarch._wire import message

LONE = os.fsdecode(b"caf\xe9")
ANY_TEXT = st.text(st.characters(codec=None))


@given(ANY_TEXT, st.integers(0, 60))
def test_what_is_sendable_has_utf_8_and_is_bounded(text: str, limit: int) -> None:
    clean = sendable(text, limit)
    clean.encode()
    assert len(clean) <= limit
    assert sendable(clean, limit) == clean


@given(st.text(max_size=50))
def test_what_is_fit_already_is_left_alone(text: str) -> None:
    assert sendable(text) is text


def test_both_ends_of_a_long_text_stay() -> None:
    text = "begin" + "x" * 1_000_000 + "end"
    clipped = clip(text)
    assert len(clipped) == TEXT_LIMIT
    assert clipped.startswith("begin")
    assert clipped.endswith("end")
    assert f"[{len(text) - TEXT_LIMIT} characters left out]" in clipped


class Odd:
    def __init__(self, text: Any) -> None:
        self.text = text

    def __str__(self) -> str:
        if isinstance(self.text, BaseException):
            raise self.text
        return self.text  # type: ignore[no-any-return]


class OddText(str):
    def __str__(self) -> str:
        raise SystemExit(3)


@pytest.mark.parametrize("text", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), None, 7])
def test_the_text_of_anything(text: Any) -> None:
    assert "Odd" in text_of(Odd(text))


def test_the_text_of_a_str_of_another_kind() -> None:
    assert text_of(Odd(OddText(LONE))) == "caf\\udce9"


def test_a_traceback_is_bounded_and_fit_to_send() -> None:
    text = format_remote(RuntimeError(LONE + "x" * 1_000_000))
    assert "caf\\udce9" in text
    assert len(text) <= TEXT_LIMIT


# Fields that hold no text of a program: addresses, keys and names of processes that the runtime makes itself, and names of
# methods, which endpoints check (`Endpoint`).
OURS = {
    "address", "adverb", "again", "agent", "at", "back", "client", "folder", "host", "key", "link", "mesh", "method",
    "origin", "over", "owner", "owner_proc", "purpose", "reached", "replaces", "sender", "source", "to", "up",
}  # fmt: skip
# What is text and cleaned elsewhere: output is decoded with replacements, environments travel as they are or not at all.
ELSEWHERE = {("Output", "text"), ("Attach", "env"), ("SetCredentials", "hosts"), ("PlanHost", "names")}


def texts_of(cls: Any) -> list[tuple[str, Any]]:
    """The fields of a struct with text in them, and a value of each that cannot be sent."""
    hints = typing.get_type_hints(cls)
    found = []
    for field in msgspec.structs.fields(cls):
        kind = str(hints[field.name])
        if field.name in OURS or (cls.__name__, field.name) in ELSEWHERE:
            continue
        if hints[field.name] is str:
            found.append((field.name, LONE))
        elif kind == "list[str]":
            found.append((field.name, [LONE]))
        else:
            assert "str" not in kind.replace("Struct", ""), f"{cls.__name__}.{field.name}: is it text?"
    return found


def made(cls: Any, texts: dict[str, Any]) -> Any:
    """A struct with these fields, and something in the others."""
    hints = typing.get_type_hints(cls)
    fillers: dict[Any, Any] = {str: "", int: 1, bytes: b"", bool: False, float: 1.0}
    values = dict(texts)
    for field in msgspec.structs.fields(cls):
        if field.required and field.name not in values:
            hint = hints[field.name]
            values[field.name] = made(hint, {}) if hasattr(hint, "__struct_fields__") else fillers.get(hint, [])
    return cls(**values)


STRUCTS = [*typing.get_args(message.Message), WaitEdge, RunningHandler]


@pytest.mark.parametrize("cls", STRUCTS, ids=lambda cls: cls.__name__)
def test_no_text_keeps_a_message_from_being_sent(cls: Any) -> None:
    for field, hostile in texts_of(cls):
        msg = made(cls, {field: hostile})
        decoded = msgspec.msgpack.decode(message.encode(msg), type=cls)
        assert "caf\\udce9" in getattr(decoded, field)
        large = made(cls, {field: "x" * 10_000_000 if isinstance(hostile, str) else ["x" * 10_000_000]})
        assert len(message.encode(large)) < 2 * TEXT_LIMIT


def test_names_are_shorter_than_texts() -> None:
    spawn = made(message.Spawn, {"name": "x" * 10_000})
    assert len(spawn.name) == NAME_LIMIT


# --- for people


@pytest.mark.parametrize(
    ("seconds", "long", "short"),
    [
        (0, "0.0 s", "0.0s"),
        (0.0004, "0.4 ms", "0.0s"),
        (0.012, "12 ms", "0.0s"),
        (0.421, "421 ms", "0.4s"),
        (0.9996, "1.0 s", "1.0s"),
        (59.94, "59.9 s", "59.9s"),
        (59.96, "1 min 0 s", "1m00s"),
        (61, "1 min 1 s", "1m01s"),
        (3661, "1 h 1 min", "1h01m"),
        (90_000, "1 d 1 h", "1d01h"),
    ],
)
def test_times(seconds: float, long: str, short: str) -> None:
    assert (_text.duration(seconds), _text.age(seconds)) == (long, short)


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "-"),
        (0, "0 B"),
        (1000, "1000 B"),
        (1024, "1 KiB"),
        (512 << 20, "512 MiB"),
        ((1 << 30) - 1, "1.0 GiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 42, "4.0 TiB"),
    ],
)
def test_sizes(count: int | None, shown: str) -> None:
    assert _text.size(count) == shown


def test_counts_and_first_lines() -> None:
    assert [_text.counted(number, "host") for number in (0, 1, 2, 1000)] == [
        "0 hosts",
        "1 host",
        "2 hosts",
        "1,000 hosts",
    ]
    assert _text.counted(2, "process") == "2 processes"
    assert _text.first_line("\n a\nb") == "a" and _text.first_line("") == ""
    assert _text.first_line(ValueError("a\nb")) == "a" and _text.first_line(ValueError()) == "ValueError"
