from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch._wire import message
from monarch._wire.message import (
    Answer,
    Call,
    Command,
    EnvChange,
    Failure,
    Hello,
    LaunchSpec,
    decode,
    decode_extent,
    encode,
    encode_around_rank,
    encode_extent,
)
from tests.support.examples import examples

UNION: Sequence[type] = typing.get_args(message.Message)
DEFINED = [
    value
    for value in vars(message).values()
    if isinstance(value, type) and issubclass(value, message._Message) and value.__struct_config__.tag is not None
]
i64 = st.integers(-(2**63), 2**63 - 1)
BASIC: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=20),
    int: i64,
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    bytes: st.binary(max_size=20),
    list[int]: st.lists(i64, max_size=3),
    list[str]: st.lists(st.text(max_size=5), max_size=3),
}


def made(cls: type) -> st.SearchStrategy[Any]:
    """Any value of a struct whose fields are plain, or structs of plain fields."""
    hints = typing.get_type_hints(cls)
    fields: tuple[str, ...] = cls.__struct_fields__  # type: ignore[attr-defined]
    return st.builds(cls, **{name: one_of(hints[name]) for name in fields})


def one_of(hint: Any) -> st.SearchStrategy[Any]:
    if hint in BASIC:
        return BASIC[hint]
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is list:
        return st.lists(one_of(inner[0]), max_size=3)
    if typing.get_origin(hint) is tuple:
        return st.tuples(*map(one_of, inner))
    if typing.get_origin(hint) is dict:
        return st.dictionaries(one_of(inner[0]), one_of(inner[1]), max_size=3)
    if isinstance(hint, types.UnionType):  # or None
        return st.one_of(*map(one_of, typing.get_args(hint)))
    return st.none() if hint is type(None) else made(hint)


def test_every_message_is_in_the_union_and_has_a_tag_of_its_own() -> None:
    assert set(UNION) == set(DEFINED)
    tags = [cls.__struct_config__.tag for cls in DEFINED]
    assert all(isinstance(tag, int) for tag in tags)
    assert len(set(tags)) == len(tags)


@pytest.mark.parametrize("cls", DEFINED, ids=lambda cls: cls.__name__)
@settings(max_examples=examples(30))
@given(data=st.data())
def test_messages_arrive_as_they_were(cls: type, data: st.DataObject) -> None:
    sent = data.draw(made(cls))
    for encoded in (encode(sent), bytearray(encode(sent)), memoryview(encode(sent))):
        arrived = decode(encoded)
        assert arrived == sent and type(arrived) is cls


def test_tags_are_what_older_processes_know() -> None:
    """Tags are never reused: what two versions say to each other before Hello must not be misunderstood."""
    assert encode(Hello(1, "a", 2)) == msgspec.msgpack.encode([0, 1, "a", 2, 0, -1, False])
    assert encode(Answer(5, 1, 0)) == msgspec.msgpack.encode([6, 5, 1, 0, ""])


def test_fields_added_at_the_end_do_not_break_readers() -> None:
    longer = [*msgspec.msgpack.decode(encode(Hello(1, "unix:/a/b", 7))), "a field of a later version"]
    assert decode(msgspec.msgpack.encode(longer)) == Hello(1, "unix:/a/b", 7)
    assert decode(msgspec.msgpack.encode([9, "why"])) == Failure("why")  # and those that were left out have defaults


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\xc1",
        b"garbage",
        msgspec.msgpack.encode([999]),
        msgspec.msgpack.encode([0, "one", "a", 2]),
        b"\x91",
    ],
)
def test_what_is_no_message_is_a_decode_error(head: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(head)


def test_default_lists_are_not_shared() -> None:
    one, other = Failure("a"), Failure("b")
    one.ranks.append(1)
    assert other.ranks == []


def test_a_launch_spec_survives() -> None:
    command = Command("python", None, ["-m", "x"], {"A": "1"}, EnvChange({"A": "1", "B": None}, inherit=False))
    spec = LaunchSpec(
        "procs", {"A": "b"}, "/", ["/x"], "", b"cfg", True, False, ["torch"], True,
        [None, command], [{}, {"cpus": "0-3"}],
    )  # fmt: skip
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=LaunchSpec) == spec


extents = st.dictionaries(st.text(max_size=6), st.integers(1, 2**40), max_size=4)


@given(extents)
def test_extents(extent: dict[str, int]) -> None:
    labels, sizes = tuple(extent), tuple(extent.values())
    view = encode_extent(labels, sizes)
    assert decode_extent(view) == (labels, sizes)
    assert decode_extent(view) is decode_extent(bytes(bytearray(view)))  # every message carries one: remembered


def test_only_so_many_extents_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message, "_extents", {})
    monkeypatch.setattr(message, "_EXTENTS_KEPT", 8)
    for size in range(1, 100):
        assert decode_extent(encode_extent(("x",), (size,))) == (("x",), (size,))
        assert len(message._extents) <= 8


@pytest.mark.parametrize("rank", [0, 1, 127, 128, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("incarnation", [0, 7, 1 << 40])
def test_a_call_around_the_rank_of_its_receiver(rank: int, incarnation: int) -> None:
    for first in (0, 300):
        call = Call("mesh", "mesh.0", 1, "step", 1, "", first, encode_extent(("gpus",), (8,)), 3, incarnation)
        before, behind = encode_around_rank(call)
        call.rank = rank
        assert before + encode(rank) + behind == encode(call)


def test_a_call_is_small() -> None:
    view = encode_extent(("gpus",), (8,))
    assert len(encode(Call("mesh", "mesh.0", 1, "step", 1, "", 0, view, 0))) < 60
