"""Credentials, by which programs say who may speak: a job's secret, certificates, or the word that everybody may."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
import warnings
from collections.abc import Iterable

from monarch._linux import private_files
from monarch._mesh.start.agent_process import Credentials
from monarch._wire import host_address
from monarch._wire.auth import Secret, load_secret

TRUST_ALL = "trust_all_connections"
_TLS = ("MONARCH_TLS_CA", "MONARCH_TLS_CERT", "MONARCH_TLS_KEY")

Pem = str | bytes | os.PathLike[str]


def credentials(
    ca: Pem | None,
    certificate: Pem | None,
    private_key: Pem | None,
    secret: str | bytes | Secret | None,
    addresses: Iterable[str],
    dialled: bool = False,
) -> Credentials:
    """Puts together what was given here and what the environment says, for links at or, when they are `dialled`, to these
    addresses.

    `ca`, `certificate`, `private_key`: PEM files or their bytes; MONARCH_TLS_CA, MONARCH_TLS_CERT and MONARCH_TLS_KEY
    where they are None. `secret`: MONARCH_SECRET_FILE or MONARCH_SECRET where it is None. `ca="trust_all_connections"`
    uses no certificates.

    ValueError when only some of the certificates are given, when a file cannot be read, when an address wants certificates
    (`tls://`) and there are none, and when there is neither a secret nor a certificate for an address that others can
    reach, unless everybody is to be trusted: that warns.
    """
    trusting = ca == TRUST_ALL
    given = [ca, certificate, private_key]
    if trusting:
        if certificate is not None or private_key is not None:
            raise ValueError(
                f"ca={TRUST_ALL!r} uses no certificates: leave out certificate and private_key, or name a ca"
            )
        given = [None, None, None]
    elif all(pem is None for pem in given):
        given = [os.environ.get(name) or None for name in _TLS]
    pems = [_read(pem) for pem in given]
    if any(pems) and not all(pems):
        names = [name for name, pem in zip(("ca", "certificate", "private_key"), pems, strict=True) if not pem]
        raise ValueError(
            f"TLS between hosts is mutual and needs ca, certificate and private_key; missing: {', '.join(names)}. "
            f"`monarch certs DIRECTORY` makes all three"
        )
    if given[2] is not None and not isinstance(given[2], bytes):
        _warn_of_readers(given[2])
    known = load_secret(secret, os.environ)
    there = list(addresses)
    if not pems[0]:
        check_plain(there)
    if known is None and not pems[0]:
        _check_open(there, trusting, dialled)
    return Credentials(known.reveal() if known is not None else b"", pems[0], pems[1], pems[2])


def check_plain(addresses: Iterable[str]) -> None:
    """ValueError when one of them wants certificates, of which there are none: what goes there is never sent in plain."""
    for address in addresses:
        if host_address.parse(address).tls:
            raise ValueError(
                f"{address!r} wants TLS, and no certificates are given: nothing is sent there in plain. Give ca, certificate "
                f"and private_key ({', '.join(_TLS)}; `monarch certs DIRECTORY` makes them), or write tcp:// "
                f"on both sides where nobody else can read what goes over the network"
            )


def _check_open(addresses: list[str], trusting: bool, dialled: bool) -> None:
    """A Unix socket takes our own user only, a port of this machine every user of it, others those of other machines."""
    exposed = [address for address in addresses if _reach(address, dialled) >= (_MACHINES if trusting else _USERS)]
    if not exposed:
        return
    where = ", ".join(exposed[:4]) + (f" and {len(exposed) - 4} more" if len(exposed) > 4 else "")
    if not trusting:
        raise ValueError(
            f"nothing protects {where}: whoever can connect can run code there. Give both sides the same secret "
            f"(MONARCH_SECRET_FILE, MONARCH_SECRET, or secret=...; `monarch secret FILE` makes one) or certificates (ca=, "
            f"certificate=, private_key=; `monarch certs DIRECTORY` makes them). In a network where everybody is trusted: "
            f"ca={TRUST_ALL!r}"
        )
    warnings.warn(
        f"ca={TRUST_ALL!r} without a secret: whoever can connect to {where} can run code there. Set MONARCH_SECRET_FILE "
        f"on both sides to keep strangers out (`monarch secret FILE` makes one)",
        UserWarning,
        stacklevel=4,
    )


_LARGEST = 1 << 20  # bytes of a PEM file
_OURS, _USERS, _MACHINES = range(3)


def _reach(address: str, dialled: bool) -> int:
    """Returns who can connect there: processes of our own user, all users of this machine, other machines as well. Of
    an alias (`dial@bind`) the place that is dialled counts for who dials, and for who listens all that get through to
    either."""
    found = host_address.parse(address)
    places = (found.dial,) if dialled and found.dial is not None else (found.dial, found.bind)
    return max(_reach_of(place) for place in places if place is not None)


def _reach_of(place: host_address.Place) -> int:
    if isinstance(place, host_address.Ipc):
        return _OURS
    if isinstance(place, host_address.Inherited):
        return _reach_of_descriptor(place.fd)
    return _USERS if place.host == "localhost" or _is_loopback(place.host) else _MACHINES


def _reach_of_descriptor(fd: int) -> int:
    """Returns who can connect: where it is bound counts, and not what the address says of it."""
    try:
        with socket.socket(fileno=os.dup(fd)) as sock:
            if sock.family == socket.AF_UNIX:
                return _OURS
            return _USERS if _is_loopback(str(sock.getsockname()[0])) else _MACHINES
    except OSError:  # not open, or no socket: nothing listens there, which the one that tries to will say
        return _OURS


def _is_loopback(host: str) -> bool:
    return host_address.is_address(host) and ipaddress.ip_address(host).is_loopback


def _warn_of_readers(private_key: str | os.PathLike[str]) -> None:
    """Not refused, as a secret's file would be: keys are often mounted with modes that nobody here can change."""
    mode = stat.S_IMODE(os.stat(private_key).st_mode)
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        warnings.warn(
            f"the private key {os.fspath(private_key)!r} may be read by others (mode {mode:04o}), who can then run code "
            f"on all hosts; run chmod 600 on it",
            UserWarning,
            stacklevel=4,
        )


def own_credentials() -> Credentials:
    """Returns the credentials of a client whose machine listens: what the environment says; without a word of it nobody
    else can connect."""
    pems = [os.environ.get(name) or None for name in _TLS]
    secret = load_secret(None, os.environ) or Secret.generate()
    return credentials(pems[0], pems[1], pems[2], secret, [])


def _read(pem: Pem | None) -> bytes:
    if pem is None:
        return b""
    if isinstance(pem, bytes):
        return pem
    try:
        return private_files.read(pem, _LARGEST)
    except OSError as exc:
        raise ValueError(f"the PEM file {os.fspath(pem)!r} cannot be read: {exc.strerror}") from exc
