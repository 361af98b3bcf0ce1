"""Addresses at which a host listens and others reach it, as people write it.

    tcp://host:port           listens at host, and is dialled there; IPv6 in brackets
    tcp://*:port              listens at every address; others dial the one that is found for it
    tcp://host:fd7            listens at descriptor 7, inherited, bound or already listening
    tls://, metatls://        as tcp://, and certificates are required
    ipc://path, ipc://@name   a Unix socket, an abstract one
    <dial>@<bind>             two of these: listens at the second, others dial the first
    <anything else>@<url>     the part before the last @ is ignored

`prefix` is what addresses of processes on such a host begin with: the host of `monarch._wire.address`.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from monarch._text import bracketed

_TCP = {"tcp": False, "tls": True, "metatls": True}  # scheme -> whether certificates are required
SCHEMES = (*_TCP, "ipc")
_EVERY = ("*", "0.0.0.0", "::")
_HIGHEST_PORT = 65535
_PATH_LIMIT = 107  # bytes the kernel takes for a Unix socket's path
_FORMS = "tcp://host:port, tcp://[IPv6]:port, tcp://*:port, tls://host:port, ipc://path or ipc://@name"
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")


@dataclass(frozen=True, slots=True)
class Tcp:
    """A host and a port. As a place to listen: `host` "*" is every address, `port` 0 any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://{bracketed(self.host)}:{self.port}"


@dataclass(frozen=True, slots=True)
class Ipc:
    """A Unix socket: an absolute path, or "@" and a name without a file."""

    path: str

    def __str__(self) -> str:
        return f"ipc://{self.path}"

    @property
    def name(self) -> str:
        """Returns what the kernel is told."""
        return "\0" + self.path[1:] if self.path.startswith("@") else self.path


@dataclass(frozen=True, slots=True)
class Inherited:
    """A descriptor that is bound, or listening already. `host` is what others dial, "*" when it has to be found."""

    fd: int
    host: str

    def __str__(self) -> str:
        return f"tcp://{bracketed(self.host)}:fd{self.fd}"


Place = Tcp | Ipc | Inherited


@dataclass(frozen=True, slots=True)
class HostAddress:
    """`dial`: where others reach the host; None when only listening tells (`*`, port 0, a descriptor). `bind`: where it
    listens. `tls`: certificates are required."""

    dial: Tcp | Ipc | None
    bind: Place
    tls: bool = False

    @property
    def prefix(self) -> str:
        """Returns what addresses of its processes begin with, such as tcp://10.0.0.1:22222; "" while `dial` is not
        known.

        tcp:// also with TLS: the same host, whatever the scheme it was written with.
        """
        return "" if self.dial is None else str(self.dial)


def parse(text: str) -> HostAddress:
    """Reads any form of the module's docstring. A relative ipc path is taken from the current folder.

    TypeError for what is no str, ValueError saying what is wrong and what the forms are.
    """
    if not isinstance(text, str):
        raise TypeError(f"the address of a host is a str such as tcp://10.0.0.1:22222, got {type(text).__name__}")
    left, url = _split(text)
    bind, tls = _place(text, url)
    alias = _alias(left)
    if alias is None:
        return HostAddress(_dialable(bind), bind, tls)
    dial, dial_tls = _place(text, alias)
    reached = _dialable(dial)
    if reached is None:
        raise _invalid(text, f"others cannot dial {alias!r}: the part before @ needs a host and a port of its own")
    return HostAddress(reached, bind, tls or dial_tls)


def parse_dial(text: str) -> HostAddress:
    """Parses as `parse` does, for a host to connect to: `dial` is never None. ValueError for what can only be listened
    at."""
    found = parse(text)
    if found.dial is None:
        raise _invalid(text, "this can only be listened at; to reach a host give its name or address, and its port")
    return found


def _split(text: str) -> tuple[str, str]:
    """(what stands before the last @ that a URL follows, that URL). An @ elsewhere is part of an ipc path."""
    for at in reversed([match.start() for match in re.finditer("@", text)]):
        if _URL.match(text, at + 1):
            return text[:at], text[at + 1 :]
    return "", text


def _alias(left: str) -> str | None:
    """The URL in what stood before an @, without a name of a process before it in turn; None when there is none."""
    url = _split(left)[1]
    return url if _URL.match(url) else None


def _place(text: str, url: str) -> tuple[Place, bool]:
    match = _URL.match(url)
    if match is None:
        raise _invalid(text, f"{url!r} is not a URL; expected {_FORMS}")
    scheme, rest = match.groups()
    if scheme == "ipc":
        return _ipc(text, rest), False
    if scheme not in _TCP:
        raise _invalid(text, f"unknown scheme {scheme!r} (known schemes: {', '.join(SCHEMES)})")
    host, colon, port = rest.rpartition(":")
    if not colon:
        raise _invalid(text, f"the port is missing; expected {scheme}://{rest or 'host'}:22222")
    if port.startswith("fd") and _is_number(port[2:]):
        return Inherited(int(port[2:]), _host(text, host)), _TCP[scheme]
    if not _is_number(port) or len(port) > 5 or int(port) > _HIGHEST_PORT:
        raise _invalid(
            text, f"the port must be a number up to {_HIGHEST_PORT}, or fd and the number of a descriptor, got {port!r}"
        )
    return Tcp(_host(text, host), int(port)), _TCP[scheme]


def _ipc(text: str, rest: str) -> Ipc:
    if not rest.removeprefix("@") or "\0" in rest:
        raise _invalid(text, "expected ipc://path or ipc://@abstract-name")
    path = rest if rest.startswith("@") else os.path.abspath(rest)
    if len(os.fsencode(path)) > _PATH_LIMIT:
        raise _invalid(
            text, f"{path!r} is longer than the {_PATH_LIMIT} bytes a Unix socket may have; choose a shorter path"
        )
    return Ipc(path)


def _host(text: str, host: str) -> str:
    """The host as it is compared: lower case, IPv6 compressed and without brackets, "*" for every address."""
    if host.startswith("[") and host.endswith("]"):
        try:
            found = str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError as exc:
            raise _invalid(text, f"{host} is not an IPv6 address") from exc
    elif ":" in host:
        raise _invalid(text, f"an IPv6 address is written in brackets, as tcp://[{host}]:port")
    elif host and not host.strip("0123456789."):
        try:
            found = str(ipaddress.IPv4Address(host))
        except ValueError as exc:
            raise _invalid(text, f"{host} is not an IPv4 address") from exc
    elif host == "*" or (_NAME.fullmatch(host) and ".." not in host and len(host) <= 253):
        found = host.lower()
    else:
        raise _invalid(text, f"{host!r} is not a host; expected {_FORMS}")
    return "*" if found in _EVERY else found


def _dialable(place: Place) -> Tcp | Ipc | None:
    if isinstance(place, Tcp):
        return place if place.port and place.host != "*" else None
    return place if isinstance(place, Ipc) else None


def is_address(host: str) -> bool:
    """Returns whether `host` is an address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _invalid(text: str, why: str) -> ValueError:
    return ValueError(f"{text!r} is not the address of a host: {why}")


def routable_address() -> str:
    """An address of this machine that others can reach: what its host name stands for, else the one that packets of the
    default route carry, else a loopback address. IPv4 before IPv6, never 127.0.1.1. May wait for the name service."""
    return choose_routable((_of_hostname, _of_default_route), _is_ours)


def choose_routable(sources: Iterable[Callable[[], Iterable[str]]], is_ours: Callable[[str], bool]) -> str:
    """The first address of the first source that others can reach and that is this machine's. Without one 127.0.0.1."""
    for source in sources:
        reachable = [text for text in source() if _reachable(text) and is_ours(text)]
        if reachable:
            return min(reachable, key=lambda text: ":" in text)
    return "127.0.0.1"


def _reachable(text: str) -> bool:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (found.is_loopback or found.is_unspecified or found.is_link_local or found.is_multicast)


def _of_hostname() -> list[str]:
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(entry[4][0]) for entry in found]


def _of_default_route() -> list[str]:
    """Connecting a UDP socket sends nothing; the kernel only chooses the address it would send from. The far ends are
    addresses that RFC 5737 and RFC 3849 keep for documentation: nobody has them."""
    found = []
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect((far, 9))
                found.append(str(sock.getsockname()[0]))
        except OSError:  # no route, or no such family
            continue
    return found


def _is_ours(text: str) -> bool:
    """Returns whether this machine can listen there: a host name may stand for an address that it had once, or that a
    router has."""
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((text, 0))
    except OSError:
        return False
    return True
