"""Over what processes talk, and where they listen.

A `ChannelTransport` is a kind of socket; a `BindSpec` is a transport ("any address of this kind") or one
address to listen at, written as a URL. Knows nothing of sockets.
"""

from __future__ import annotations

import enum


class ChannelTransport(enum.Enum):
    """The kinds of socket between hosts that a program can ask for. The value is the short name `BindSpec` also reads.

    With Unix (the default) and Local the client's host listens nowhere, and dials the others. TcpWithHostname and
    TcpWithLocalhost listen at a TCP port of all addresses, and of 127.0.0.1. Tls, and both MetaTls names, listen with TLS.
    The Quic names are read because programs may bring them, and are as Unix.
    """

    Unix = "unix"
    TcpWithLocalhost = "tcp-localhost"
    TcpWithHostname = "tcp"
    MetaTlsWithHostname = "metatls-hostname"
    MetaTlsWithIpV6 = "metatls"
    Tls = "tls"
    Local = "local"
    Quic = "quic"
    MetaQuicWithHostname = "metaquic-hostname"
    MetaQuicWithIpV6 = "metaquic"

    def __repr__(self) -> str:
        return f"ChannelTransport.{self.name}"


SHORT_NAMES = {transport.value: transport for transport in ChannelTransport} | {"ipc": ChannelTransport.Unix}

_HOST_SCHEMES = {
    "tcp": ChannelTransport.TcpWithHostname,
    "tls": ChannelTransport.Tls,
    "metatls": ChannelTransport.MetaTlsWithHostname,
}
SCHEMES = (*_HOST_SCHEMES, "ipc", "inproc")

_HIGHEST_PORT = 65535


class BindSpec:
    """An address to listen at: any address of a transport, or one given address.

    `spec` is a `ChannelTransport`, another `BindSpec`, a short name ("unix", "ipc", "tcp", "tls", "metatls",
    "metatls-hostname", "local"...) or a URL: `tcp://host:port`, `tls://host:port`, `metatls://host:port`,
    `ipc://path`, `ipc://@abstract-name`, `inproc://number`; the host may be `*`. Immutable; equal to a spec
    of the same transport and address; picklable.

    Raises ValueError ("invalid str for BindSpec ...") for another string, TypeError for another type.
    """

    __slots__ = ("_address", "_transport")

    _transport: ChannelTransport
    _address: str | None

    def __init__(self, spec: ChannelTransport | BindSpec | str) -> None:
        if isinstance(spec, BindSpec):
            self._transport, self._address = spec.transport, spec.address
        elif isinstance(spec, ChannelTransport):
            self._transport, self._address = spec, None
        elif isinstance(spec, str):
            self._transport, self._address = _parse(spec)
        else:
            raise TypeError(f"expected ChannelTransport enum, BindSpec, or str, got {spec!r} ({type(spec).__name__})")

    @property
    def transport(self) -> ChannelTransport:
        """The kind of socket."""
        return self._transport

    @property
    def address(self) -> str | None:
        """The URL to listen at; None where any address of the transport will do."""
        return self._address

    def __str__(self) -> str:
        """The text that makes an equal spec."""
        return self._transport.value if self._address is None else self._address

    def __repr__(self) -> str:
        return f"BindSpec({self._transport!r})" if self._address is None else f"BindSpec({self._address!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BindSpec):
            return NotImplemented
        return (self._transport, self._address) == (other._transport, other._address)

    def __hash__(self) -> int:
        return hash((self._transport, self._address))

    def __reduce__(self) -> tuple[type[BindSpec], tuple[str]]:
        return BindSpec, (str(self),)


def _parse(text: str) -> tuple[ChannelTransport, str | None]:
    if text in SHORT_NAMES:
        return SHORT_NAMES[text], None
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise _invalid(text, f"it is neither a URL nor one of the transports {', '.join(sorted(SHORT_NAMES))}")
    if scheme in _HOST_SCHEMES:
        _check_host_and_port(text, rest)
        return _HOST_SCHEMES[scheme], text
    if scheme == "ipc":
        if not rest.removeprefix("@") or "\0" in rest:
            raise _invalid(text, "expected ipc://path or ipc://@abstract-name")
        return ChannelTransport.Unix, text
    if scheme == "inproc":
        if not _is_number(rest):
            raise _invalid(text, "expected inproc:// and a number")
        return ChannelTransport.Local, text
    raise _invalid(text, f"unknown scheme {scheme!r} (known schemes: {', '.join(SCHEMES)})")


def _check_host_and_port(text: str, rest: str) -> None:
    host, _, port = rest.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host.replace(":", "/")  # IPv6 needs brackets
    if not bare or any(letter in "/@[]" or letter.isspace() for letter in bare):
        raise _invalid(text, "expected host:port after the scheme (an IPv6 host in brackets)")
    if not _is_number(port) or len(port) > len(str(_HIGHEST_PORT)) or int(port) > _HIGHEST_PORT:
        raise _invalid(text, f"the port must be a number up to {_HIGHEST_PORT}, got {port!r}")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _invalid(text: str, why: str) -> ValueError:
    return ValueError(f"invalid str for BindSpec {text!r}: {why}")
