from __future__ import annotations

import pickle
import re

import pytest

from monarch.config.transport import BindSpec, ChannelTransport


def test_the_transports_programs_name_are_there() -> None:
    assert {transport.name for transport in ChannelTransport} == {
        "Unix",
        "TcpWithLocalhost",
        "TcpWithHostname",
        "MetaTlsWithHostname",
        "MetaTlsWithIpV6",
        "Tls",
        "Local",
        "Quic",
        "MetaQuicWithHostname",
        "MetaQuicWithIpV6",
    }


@pytest.mark.parametrize("transport", ChannelTransport)
def test_a_transport_survives_pickling(transport: ChannelTransport) -> None:
    assert pickle.loads(pickle.dumps(transport)) is transport
    assert repr(transport) == f"ChannelTransport.{transport.name}"


@pytest.mark.parametrize(
    ("text", "transport"),
    [
        ("unix", ChannelTransport.Unix),
        ("ipc", ChannelTransport.Unix),
        ("tcp", ChannelTransport.TcpWithHostname),
        ("tls", ChannelTransport.Tls),
        ("metatls", ChannelTransport.MetaTlsWithIpV6),
        ("metatls-hostname", ChannelTransport.MetaTlsWithHostname),
        ("local", ChannelTransport.Local),
    ],
)
def test_a_short_name_is_any_address_of_its_transport(text: str, transport: ChannelTransport) -> None:
    spec = BindSpec(text)
    assert spec == BindSpec(transport)
    assert (spec.transport, spec.address) == (transport, None)


@pytest.mark.parametrize(
    ("url", "transport"),
    [
        ("tcp://127.0.0.1:8080", ChannelTransport.TcpWithHostname),
        ("tcp://*:0", ChannelTransport.TcpWithHostname),
        ("tcp://[::1]:65535", ChannelTransport.TcpWithHostname),
        ("tls://node7.example:443", ChannelTransport.Tls),
        ("metatls://node7:1", ChannelTransport.MetaTlsWithHostname),
        ("ipc:///tmp/socket", ChannelTransport.Unix),
        ("ipc://@name", ChannelTransport.Unix),
        ("inproc://5", ChannelTransport.Local),
    ],
)
def test_a_url_is_one_address(url: str, transport: ChannelTransport) -> None:
    spec = BindSpec(url)
    assert (spec.transport, spec.address) == (transport, url)
    assert str(spec) == url
    assert repr(spec) == f"BindSpec({url!r})"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("bogus", "it is neither a URL nor one of the transports ipc, local, metaquic, "),
        ("", "it is neither a URL nor one of the transports"),
        ("Unix", "it is neither a URL nor one of the transports"),
        ("http://x:1", "unknown scheme 'http' (known schemes: tcp, tls, metatls, ipc, inproc)"),
        ("tcp://", "expected host:port after the scheme"),
        ("tcp://host", "expected host:port after the scheme"),
        ("tcp://:80", "expected host:port after the scheme"),
        ("tcp://::1:80", "expected host:port after the scheme (an IPv6 host in brackets)"),
        ("tcp://a:1@tcp://b:2", "expected host:port after the scheme"),
        ("tcp://a b:1", "expected host:port after the scheme"),
        ("tcp://host:", "the port must be a number up to 65535, got ''"),
        ("tcp://host:x", "the port must be a number up to 65535, got 'x'"),
        ("tcp://host:-1", "the port must be a number up to 65535, got '-1'"),
        ("tcp://host:65536", "the port must be a number up to 65535, got '65536'"),
        ("tcp://127.0.0.1:fd3", "the port must be a number up to 65535, got 'fd3'"),
        ("ipc://", "expected ipc://path or ipc://@abstract-name"),
        ("ipc://@", "expected ipc://path or ipc://@abstract-name"),
        ("ipc://a\0b", "expected ipc://path or ipc://@abstract-name"),
        ("inproc://x", "expected inproc:// and a number"),
        ("inproc://\N{SUPERSCRIPT TWO}", "expected inproc:// and a number"),
    ],
)
def test_another_string_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"invalid str for BindSpec {text!r}: {why}")):
        BindSpec(text)


@pytest.mark.parametrize("value", [3, None, b"tcp", ["tcp"]])
def test_another_type_is_refused(value: object) -> None:
    expected = f"expected ChannelTransport enum, BindSpec, or str, got {value!r} ({type(value).__name__})"
    with pytest.raises(TypeError, match=f"^{re.escape(expected)}$"):
        BindSpec(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [*ChannelTransport, "tcp://h:1", "ipc://@x"])
def test_copies_are_equal_and_hash_alike(given: ChannelTransport | str) -> None:
    spec = BindSpec(given)
    for copy in (BindSpec(spec), BindSpec(str(spec)), pickle.loads(pickle.dumps(spec))):
        assert copy == spec
        assert hash(copy) == hash(spec)


def test_specs_differ_by_transport_and_by_address() -> None:
    specs = {BindSpec(transport) for transport in ChannelTransport} | {
        BindSpec("tcp://h:1"),
        BindSpec("tcp://h:2"),
    }
    assert len(specs) == len(ChannelTransport) + 2
    assert BindSpec("unix") != ChannelTransport.Unix
    assert BindSpec("unix") != "unix"


def test_the_repr_of_any_address_names_the_transport() -> None:
    assert repr(BindSpec("tcp")) == "BindSpec(ChannelTransport.TcpWithHostname)"
