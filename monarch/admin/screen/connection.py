"""The server that `--addr` means, and the way to speak to it. Pure.

Plain HTTP is spoken only where that was said (`--plaintext`, http://); a server that turns out to speak no TLS is never
asked again without it by itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from monarch._text import bracketed

ADMIN_PORT = 1729
TOKEN = "MONARCH_ADMIN_TOKEN"  # where --addr has none: command lines can be read by everybody on a machine
_FOUND = {"ca": "MONARCH_TLS_CA", "certificate": "MONARCH_TLS_CERT", "key": "MONARCH_TLS_KEY"}


class TlsFiles(NamedTuple):
    """PEM files; "" is the system's authorities, and no certificate of ours."""

    ca: str = ""
    certificate: str = ""
    key: str = ""


class AdminServer(NamedTuple):
    """`tls` None: plain HTTP. `token`: what the server wants to see of those on other machines."""

    url: str
    token: str
    tls: TlsFiles | None


def plan(
    address: str,
    *,
    port: int | None = None,
    plaintext: bool = False,
    tls: TlsFiles | None = None,
    environ: Mapping[str, str] = os.environ,
) -> AdminServer:
    """`address`: host:port, or a URL as it is printed when the server starts. `port`: where the address has none.
    `tls`: what was asked for. ValueError for what contradicts itself."""
    scheme, separator, _ = address.partition("://")
    parts = urlsplit(address if separator else f"//{address}")
    if separator and scheme not in ("http", "https"):
        raise ValueError(f"--addr takes host:port, http:// or https://, got {address!r}")
    try:
        given_port = parts.port
    except ValueError:
        raise ValueError(f"--addr {address!r} has no usable port: a port is 1 to 65535") from None
    if not parts.hostname:
        raise ValueError(f"--addr takes host:port or a URL, got {address!r}")
    if tls is not None and tls != TlsFiles():
        if plaintext or (scheme == "http" and separator):
            raise ValueError("TLS options and plain HTTP contradict each other: give https:// or leave out --tls-*")
        if bool(tls.certificate) != bool(tls.key):
            raise ValueError("--tls-cert and --tls-key are given together")
        if not tls.ca:
            raise ValueError("--tls-cert and --tls-key need --tls-ca")
    host = bracketed(parts.hostname)
    plain = plaintext or (bool(separator) and scheme == "http")
    default = port or (None if separator else ADMIN_PORT)
    place = host if given_port is None and default is None else f"{host}:{given_port or default}"
    token = parse_qs(parts.query).get("token", [""])[0] or environ.get(TOKEN, "")
    found = None if plain else tls if tls is not None and tls != TlsFiles() else found_tls(environ)
    return AdminServer(f"{'http' if plain else 'https'}://{place}", token, found)


def found_tls(environ: Mapping[str, str]) -> TlsFiles:
    """The certificates of the environment, where all of it is there."""
    values = {name: environ.get(variable, "") for name, variable in _FOUND.items()}
    if not values["ca"]:
        return TlsFiles()
    both = values["certificate"] and values["key"]
    return TlsFiles(values["ca"], values["certificate"] if both else "", values["key"] if both else "")
