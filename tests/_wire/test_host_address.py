from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch._wire.host_address import (
    HostAddress,
    Inherited,
    Ipc,
    Tcp,
    choose_routable,
    is_address,
    parse,
    parse_dial,
    routable_address,
)


@pytest.mark.parametrize(
    ("text", "prefix", "bind"),
    [
        ("tcp://10.0.0.1:22222", "tcp://10.0.0.1:22222", Tcp("10.0.0.1", 22222)),
        ("tcp://Node-7.Example.COM:80", "tcp://node-7.example.com:80", Tcp("node-7.example.com", 80)),
        ("tcp://worker_1:80", "tcp://worker_1:80", Tcp("worker_1", 80)),
        ("tcp://[::1]:5", "tcp://[::1]:5", Tcp("::1", 5)),
        ("tcp://[2001:DB8:0:0::1]:5", "tcp://[2001:db8::1]:5", Tcp("2001:db8::1", 5)),
        ("tcp://[fe80::1%eth0]:5", "tcp://[fe80::1%eth0]:5", Tcp("fe80::1%eth0", 5)),
        ("tcp://*:22222", "", Tcp("*", 22222)),
        ("tcp://0.0.0.0:22222", "", Tcp("*", 22222)),
        ("tcp://[::]:22222", "", Tcp("*", 22222)),
        ("tcp://10.0.0.1:0", "", Tcp("10.0.0.1", 0)),
        ("tcp://127.0.0.1:fd7", "", Inherited(7, "127.0.0.1")),
        ("tcp://*:fd12", "", Inherited(12, "*")),
        ("ipc:///tmp/w1", "ipc:///tmp/w1", Ipc("/tmp/w1")),
        ("ipc:///tmp/./x/../w1", "ipc:///tmp/w1", Ipc("/tmp/w1")),
        ("ipc:///tmp/a@b", "ipc:///tmp/a@b", Ipc("/tmp/a@b")),
        ("ipc://@name", "ipc://@name", Ipc("@name")),
        # dial@bind
        ("tcp://10.0.0.1:22222@tcp://0.0.0.0:33333", "tcp://10.0.0.1:22222", Tcp("*", 33333)),
        ("tcp://login:22222@tcp://127.0.0.1:fd3", "tcp://login:22222", Inherited(3, "127.0.0.1")),
        ("tcp://10.0.0.1:5@ipc://@name", "tcp://10.0.0.1:5", Ipc("@name")),
        ("ipc://@a@ipc://@b", "ipc://@a", Ipc("@b")),
        # the name of a process
        ("worker_0@tcp://10.0.0.1:5", "tcp://10.0.0.1:5", Tcp("10.0.0.1", 5)),
        ("a<8Pc>.b@c@tcp://10.0.0.1:5", "tcp://10.0.0.1:5", Tcp("10.0.0.1", 5)),
        ("proc@ipc://@name", "ipc://@name", Ipc("@name")),
        ("proc@tcp://10.0.0.1:5@tcp://*:6", "tcp://10.0.0.1:5", Tcp("*", 6)),
        ("@tcp://10.0.0.1:5", "tcp://10.0.0.1:5", Tcp("10.0.0.1", 5)),
    ],
)
def test_the_forms(text: str, prefix: str, bind: object) -> None:
    found = parse(text)
    assert (found.prefix, found.bind, found.tls) == (prefix, bind, False)


@pytest.mark.parametrize(
    ("text", "tls"),
    [
        ("tls://h:1", True),
        ("metatls://h:1", True),
        ("tcp://h:1", False),
        ("tls://h:1@tcp://*:1", True),
        ("tcp://h:1@metatls://*:1", True),
    ],
)
def test_tls_is_tcp_with_certificates(text: str, tls: bool) -> None:
    found = parse(text)
    assert (found.prefix, found.tls) == ("tcp://h:1", tls)


def test_a_relative_path_is_taken_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse("ipc://w1").prefix == f"ipc://{os.getcwd()}/w1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a URL; expected tcp://host:port"),
        ("10.0.0.1:22222", "is not a URL"),
        ("tcp:10.0.0.1:22222", "is not a URL"),
        ("udp://h:1", r"unknown scheme 'udp' \(known schemes: tcp, tls, metatls, ipc\)"),
        ("tcp://h", "the port is missing; expected tcp://h:22222"),
        ("tcp://h:", "the port must be a number up to 65535"),
        ("tcp://h:65536", "the port must be a number up to 65535"),
        ("tcp://h:-1", "the port must be"),
        ("tcp://h:\u0661", "the port must be"),
        ("tcp://h:fd", "the port must be"),
        ("tcp://h:1/path", "the port must be"),
        ("tcp://:1", "'' is not a host"),
        ("tcp://a b:1", "is not a host"),
        ("tcp://a..b:1", "is not a host"),
        ("tcp://user@h:1", "is not a host"),
        ("tcp://::1:5", r"written in brackets, as tcp://\[::1\]:port"),
        ("tcp://[10.0.0.1]:5", "is not an IPv6 address"),
        ("tcp://256.0.0.1:5", "is not an IPv4 address"),
        ("tcp://10.0.1:5", "is not an IPv4 address"),
        ("ipc://", "expected ipc://path or ipc://@abstract-name"),
        ("ipc://@", "expected ipc://path or ipc://@abstract-name"),
        ("ipc:///a\0b", "expected ipc://path"),
        ("ipc:///" + "x" * 107, "longer than the 107 bytes"),
        ("tcp://*:5@tcp://*:6", "others cannot dial 'tcp://\\*:5'"),
        ("tcp://h:0@tcp://*:6", "others cannot dial"),
        ("tcp://h:fd3@tcp://*:6", "others cannot dial"),
    ],
)
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        parse(text)
    assert repr(text) in str(caught.value)


def test_only_text_is_an_address() -> None:
    with pytest.raises(TypeError, match="got int"):
        parse(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["tcp://*:5", "tcp://h:0", "tcp://h:fd7"])
def test_a_place_to_listen_at_cannot_be_dialled(text: str) -> None:
    with pytest.raises(ValueError, match="can only be listened at"):
        parse_dial(text)
    assert parse_dial("tcp://h:5").dial == Tcp("h", 5)


@given(st.text(alphabet="tcpiftls:/@*[].0123456789 -_x\0\u00e9", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = parse(text)
    except ValueError:
        return
    if found.prefix:
        again = parse(found.prefix)
        assert again == HostAddress(found.dial, found.dial)  # type: ignore[arg-type]
        assert again.prefix == found.prefix
    assert parse(str(found.bind)).bind == found.bind


def test_names_are_no_addresses() -> None:
    assert is_address("10.0.0.1")
    assert is_address("::1")
    assert not is_address("localhost")


# The address that others reach.


def chosen(hostname: list[str], route: list[str], is_ours: Callable[[str], bool] = lambda text: True) -> str:
    return choose_routable((lambda: hostname, lambda: route), is_ours)


def test_the_host_name_comes_before_the_default_route() -> None:
    assert chosen(["10.0.0.1"], ["10.0.0.2"]) == "10.0.0.1"


@pytest.mark.parametrize(
    "useless", ["127.0.1.1", "127.0.0.1", "::1", "0.0.0.0", "169.254.3.4", "fe80::1", "fe80::1%eth0", "nonsense"]
)
def test_what_others_cannot_reach_is_passed_over(useless: str) -> None:
    assert chosen([useless], ["10.0.0.2"]) == "10.0.0.2"


def test_what_another_machine_has_is_passed_over() -> None:
    assert chosen(["10.9.9.9"], ["10.0.0.2"], lambda text: text == "10.0.0.2") == "10.0.0.2"


def test_ipv4_comes_before_ipv6_of_the_same_source() -> None:
    assert chosen(["2001:db8::1", "10.0.0.1"], []) == "10.0.0.1"
    assert chosen(["2001:db8::1"], ["10.0.0.1"]) == "2001:db8::1"


def test_a_machine_without_a_network_has_itself() -> None:
    assert chosen(["127.0.1.1"], []) == "127.0.0.1"


def test_this_machine_has_an_address() -> None:
    found = ipaddress.ip_address(routable_address())
    assert not found.is_unspecified
    assert str(found) != "127.0.1.1"
