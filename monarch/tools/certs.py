"""Certificates of a job: an authority of its own, and one certificate for all who take part.

A job has one certificate and key for every host and client, because all of them may do the same things: who holds
the key may run code on all hosts. The runtime asks of the other side that its certificate is the authority's, which signs
nothing else, and not for its name; the names are in it for other tools that look at them. The authority's key is not
needed to run.

Needs the package `cryptography` (the extra `tls`), when certificates are made; of what uses them compiled graphs need it too.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from monarch._linux import private_files

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

MOST_DAYS = 3650
MISSING = "making certificates needs the package cryptography: pip install 'pymonarch[tls]'"

# RFC 1123, section 2.1: labels of letters, digits and inner hyphens; a certificate may begin with `*.` (RFC 9525, 6.3).
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_NAME = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")

# Hosts whose clocks are behind take a new certificate too.
_EARLIER = datetime.timedelta(hours=1)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Certificates:
    """The files that `make_certificates` wrote, and the machines that the certificate names."""

    ca: Path
    """The authority's certificate: who is checked against it. Not secret."""
    ca_key: Path
    """The authority's key: signs further certificates. Nobody needs it to run."""
    certificate: Path
    """What every host and client shows. Not secret."""
    private_key: Path
    """Its key. Anyone who can read it may take part in the job, that is, run code on its hosts."""
    names: tuple[str, ...]
    """Names and IP addresses of the machines the certificate is for."""


def make_certificates(
    directory: str | os.PathLike[str],
    hosts: Iterable[str] = (),
    days: int = 30,
    *,
    force: bool = False,
) -> Certificates:
    """Makes a certificate authority for one job, and one certificate that all its hosts and clients use.

    In this process; nothing is sent anywhere. Writes `ca.pem`, `ca-key.pem`, `host.pem` and `host-key.pem` (PEM, elliptic
    curve P-256) into `directory`, which is made with mode 0700 if it is not there. The keys are not encrypted; their
    files have mode 0600 from the moment they exist, so nobody else can read them at any time.

    The certificate serves both sides of a mutual TLS connection. It is valid for `days` days (1 to 3650) from an hour
    ago, and names each of `hosts` (a host name such as `node7.cluster`, `*.cluster`, or an IP address), this machine's
    name, the address from which it reaches others, and localhost (`localhost`, `127.0.0.1`, `::1`).

    Existing files are left alone: FileExistsError names them, and nothing is written. With ``force=True`` they are
    replaced by new files, one by one; a process that reads them meanwhile may see the old one of one and the new one
    of another. Raises ValueError for a host that is neither a name nor an address and for days out of range,
    PermissionError if `directory` belongs to somebody else or may be written by others (who could then put files of their
    own there),
    ModuleNotFoundError if `cryptography` is not installed, and OSError if the files cannot be written.
    """
    given = [parse_host(host) for host in hosts]
    if not 1 <= days <= MOST_DAYS:
        raise ValueError(f"a certificate can be valid for 1 to {MOST_DAYS} days, not {days}")
    names = tuple(dict.fromkeys([*given, *this_machine()]))

    folder = Path(directory)
    made = Certificates(folder / "ca.pem", folder / "ca-key.pem", folder / "host.pem", folder / "host-key.pem", names)
    files = (made.ca_key, made.ca, made.private_key, made.certificate)
    if not force and (there := [str(path) for path in files if os.path.lexists(path)]):
        raise FileExistsError(
            f"already there: {', '.join(there)}; replace them with force=True (monarch certs --force), "
            f"after which certificates of the old authority are no longer accepted"
        )
    contents = _make(names, days)
    try:
        private_files.make_folder(folder)
    except private_files.UntrustedFileError as exc:
        raise PermissionError(
            f"{exc}; its writers could put keys of their own there: chmod 700 it, or name a directory of your own, or one "
            f"that does not exist yet"
        ) from None
    for path, content in zip(files, contents, strict=True):
        mode = 0o600 if path in (made.ca_key, made.private_key) else 0o644
        private_files.write(path, content, mode, replace=force)
    return made


def parse_host(text: str) -> str:
    """A host's name or IP address as certificates hold it. ValueError if `text` is neither."""
    plain = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if (address := _address(plain)) is not None:
        return str(address)
    # A name's last label is not a number: 300.1.1.1 is a mistyped address.
    if len(plain) <= 253 and _NAME.fullmatch(plain) and not plain.rpartition(".")[2].isdigit():
        return plain.lower()
    raise ValueError(
        f"{text!r} is neither a host name nor an IP address; give just that, with neither scheme nor port "
        f"(node7.cluster, *.cluster, 10.0.0.7, fd00::7), and names beyond ASCII in their xn-- form"
    )


def this_machine() -> tuple[str, ...]:
    """Names and addresses under which this machine is reached. Asks the kernel only, never a name server."""
    found = [socket.gethostname(), socket.gethostname().partition(".")[0]]
    names = [name.lower() for name in dict.fromkeys(found) if _NAME.fullmatch(name)]
    # Documentation addresses (RFC 5737, RFC 3849): outside every site, so the way there is the default route.
    outward = [
        _outward(socket.AF_INET, "192.0.2.1"),
        _outward(socket.AF_INET6, "2001:db8::1"),
    ]
    return (*names, *(address for address in outward if address), "localhost", "127.0.0.1", "::1")


def _outward(family: socket.AddressFamily, target: str) -> str | None:
    """The address this machine would send from. Connecting a datagram socket looks up the route and sends nothing."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
    except OSError:  # no such family here, or no route
        return None


def _address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    # A zone (fe80::1%eth0) means something on one machine only, and certificates have no place for it.
    return None if getattr(address, "scope_id", None) else address


def _make(names: tuple[str, ...], days: int) -> tuple[bytes, bytes, bytes, bytes]:
    """The authority's key and certificate, the hosts' key and certificate, as PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(MISSING, name="cryptography") from missing

    def key_pem(key: EllipticCurvePrivateKey) -> bytes:
        plain = serialization.NoEncryption()
        return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)

    def name(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])

    def general(text: str) -> x509.GeneralName:
        address = _address(text)
        return x509.DNSName(text) if address is None else x509.IPAddress(address)

    start = datetime.datetime.now(datetime.UTC) - _EARLIER
    end = start + _EARLIER + datetime.timedelta(days=days)
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    # A name of its own: two jobs' authorities are told apart by name before any signature is checked.
    authority = name(f"monarch job {secrets.token_hex(4)}")

    def builder(subject: x509.Name, of: EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(of.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(of.public_key()), critical=False)
        )

    # What RFC 5280 asks of each (4.2.1.1 key identifiers, 4.2.1.3 usage, 4.2.1.9 constraints): strict checks need it.
    ca = (
        builder(authority, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        builder(name("monarch host"), key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.SubjectAlternativeName([general(text) for text in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return key_pem(ca_key), ca.public_bytes(pem), key_pem(key), certificate.public_bytes(pem)


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
