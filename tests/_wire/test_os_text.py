"""Tests that what the operating system calls text arrives as it was, UTF-8 or not."""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._wire import os_text
from monarch._wire.message import Command, EnvChange, LaunchSpec

texts = st.binary(max_size=20).map(os.fsdecode)
envs = st.dictionaries(texts, texts, max_size=4)
changes = st.builds(EnvChange, st.dictionaries(texts, st.none() | texts, max_size=4), st.booleans())
commands = st.builds(Command, texts, st.none() | texts, st.lists(texts), envs, st.none() | changes)
specs = st.builds(
    LaunchSpec,
    name=st.just("mesh"),
    env=envs,
    cwd=texts,
    path=st.lists(texts),
    executable=texts,
    config=st.binary(),
    forward_logs=st.booleans(),
    prefix_with_rank=st.booleans(),
    preload=st.just(["torch"]),
    gated=st.booleans(),
    commands=st.none() | st.lists(st.none() | commands),
    binds=st.none() | st.just([{"cpus": "0"}]),
    client=st.just("unix:/x/client"),
    change=st.none() | changes,
    folder=texts,
)


@given(specs)
def test_whatever_is_to_be_started_arrives_as_it_was(spec: LaunchSpec) -> None:
    assert os_text.decode(os_text.encode(spec), LaunchSpec) == spec


@given(envs)
def test_an_environment_is_its_bytes(env: dict[str, str]) -> None:
    assert os_text.decode(os_text.encode(env), dict[str, str]) == env


def test_utf8_is_plain_msgpack() -> None:
    env = {"LANG": "de_DE.UTF-8", "HOME": "/home/josé"}
    assert os_text.encode(env) == msgspec.msgpack.encode(env)


def test_what_is_of_another_type_is_refused() -> None:
    for data in (
        msgspec.msgpack.encode({"A": 1}),
        msgspec.msgpack.encode({"A": msgspec.msgpack.Ext(7, b"x")}),
        b"\xc1",
    ):
        with pytest.raises(msgspec.DecodeError):
            os_text.decode(data, dict[str, str])
