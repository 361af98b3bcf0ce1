"""A job's certificates: they do mutual TLS, and their keys are nobody else's at any time."""

from __future__ import annotations

import datetime
import os
import ssl
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from monarch.tools import certs
from monarch.tools.certs import Certificates, make_certificates, parse_host

x509 = pytest.importorskip("cryptography.x509", reason="needs the package cryptography")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("job") / "certs", ["node7.cluster", "10.0.0.7", "fd00::7"])


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("other") / "certs", ["node7.cluster"])


# --- What they are good for.


def context(side: int, identity: Certificates | None, trusts: Certificates) -> ssl.SSLContext:
    made = ssl.SSLContext(side)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_verify_locations(trusts.ca)
    if identity is not None:
        made.load_cert_chain(identity.certificate, identity.private_key)
    return made


def talk(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> bytes:
    """A handshake in memory, then one message from the client as the server reads it."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialling = client.wrap_bio(down, up, server_hostname=name)
    serving = server.wrap_bio(up, down, server_side=True)
    done: set[int] = set()
    while len(done) < 2:
        for end in (dialling, serving):
            try:
                end.do_handshake()
                done.add(id(end))
            except ssl.SSLWantReadError:
                pass
    dialling.write(b"hello")
    return serving.read()


@pytest.mark.parametrize("name", ["node7.cluster", "10.0.0.7", "fd00::7", "localhost", "127.0.0.1", "::1"])
def test_one_certificate_serves_both_ends_under_every_name(job: Certificates, name: str) -> None:
    client = context(ssl.PROTOCOL_TLS_CLIENT, job, job)
    server = context(ssl.PROTOCOL_TLS_SERVER, job, job)
    assert talk(client, server, name) == b"hello"


def test_a_host_that_the_certificate_does_not_name_is_noticed(job: Certificates) -> None:
    client, server = context(ssl.PROTOCOL_TLS_CLIENT, job, job), context(ssl.PROTOCOL_TLS_SERVER, job, job)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"10\.0\.0\.8"):
        talk(client, server, "10.0.0.8")


def test_jobs_do_not_accept_each_other(job: Certificates, other: Certificates) -> None:
    client, server = context(ssl.PROTOCOL_TLS_CLIENT, other, job), context(ssl.PROTOCOL_TLS_SERVER, job, job)
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate.verify.failed|unknown ca"):
        talk(client, server, "node7.cluster")
    client, server = context(ssl.PROTOCOL_TLS_CLIENT, job, job), context(ssl.PROTOCOL_TLS_SERVER, other, job)
    with pytest.raises(ssl.SSLError, match=r"(?i)certificate.verify.failed|unknown ca"):
        talk(client, server, "node7.cluster")


def test_a_client_without_a_certificate_is_refused(job: Certificates) -> None:
    client, server = context(ssl.PROTOCOL_TLS_CLIENT, None, job), context(ssl.PROTOCOL_TLS_SERVER, job, job)
    with pytest.raises(ssl.SSLError, match=r"(?i)did.not.return.a.certificate"):
        talk(client, server, "node7.cluster")


def test_they_say_what_they_are_for(job: Certificates, tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "week", ["a.b"], days=7)
    ca = x509.load_pem_x509_certificate(made.ca.read_bytes())
    host = x509.load_pem_x509_certificate(made.certificate.read_bytes())
    host.verify_directly_issued_by(ca)
    ca.verify_directly_issued_by(ca)
    assert host.public_key().curve.name == ca.public_key().curve.name == "secp256r1"
    hour, now = datetime.timedelta(hours=1), datetime.datetime.now(datetime.UTC)
    assert host.not_valid_after_utc - host.not_valid_before_utc == datetime.timedelta(days=7) + hour
    assert host.not_valid_before_utc < now - hour + datetime.timedelta(minutes=10)

    constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    assert not host.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert ca.subject != x509.load_pem_x509_certificate(job.ca.read_bytes()).subject

    names = host.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    assert set(found) == set(made.names) >= {"a.b", "localhost", "127.0.0.1", "::1"}


# --- Files.


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_reads_the_keys(job: Certificates) -> None:
    assert mode(job.ca.parent) == 0o700
    assert {mode(job.ca_key), mode(job.private_key)} == {0o600}
    assert sorted(os.listdir(job.ca.parent)) == ["ca-key.pem", "ca.pem", "host-key.pem", "host.pem"]


@pytest.mark.parametrize("force", [False, True])
def test_keys_are_private_from_their_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool) -> None:
    seen: dict[str, int] = {}
    really = os.open

    def watched(path: Any, flags: int, mode: int = 0o777, **rest: Any) -> int:
        descriptor = really(path, flags, mode, **rest)
        if "key.pem" in str(path):
            seen[Path(path).name] = stat.S_IMODE(os.fstat(descriptor).st_mode)
            assert flags & os.O_EXCL
        return descriptor

    monkeypatch.setattr(os, "open", watched)
    before = os.umask(0)
    try:
        make_certificates(tmp_path / "certs", force=force)
    finally:
        os.umask(before)
    assert len(seen) == 2
    assert set(seen.values()) == {0o600}
    assert mode(tmp_path / "certs") == 0o700


def test_nothing_is_replaced_unasked(tmp_path: Path) -> None:
    (tmp_path / "host-key.pem").write_text("mine")
    with pytest.raises(FileExistsError, match=r"host-key\.pem.*--force"):
        make_certificates(tmp_path)
    assert os.listdir(tmp_path) == ["host-key.pem"]
    assert (tmp_path / "host-key.pem").read_text() == "mine"


def test_a_link_to_nowhere_counts_as_there(tmp_path: Path) -> None:
    (tmp_path / "ca-key.pem").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError, match=r"ca-key\.pem"):
        make_certificates(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_force_replaces_files_and_does_not_write_into_them(tmp_path: Path) -> None:
    readable = tmp_path / "host-key.pem"
    readable.write_text("old")
    readable.chmod(0o644)
    with readable.open() as held:
        made = make_certificates(tmp_path, force=True)
        assert held.read() == "old"
    assert mode(made.private_key) == 0o600
    assert "PRIVATE KEY" in made.private_key.read_text()
    assert len(os.listdir(tmp_path)) == 4


def test_what_fails_half_way_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        make_certificates(tmp_path / "certs", force=True)
    assert os.listdir(tmp_path / "certs") == []


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match=f"belongs to user {os.getuid()}; its writers could put keys"):
        make_certificates(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_others_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match=r"mode 0777.*chmod 700"):
        make_certificates(folder)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=r"Not a directory: '.*file'"):
        make_certificates(tmp_path / "file")


# --- Arguments.


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Node7.Cluster", "node7.cluster"),
        ("*.cluster", "*.cluster"),
        ("a", "a"),
        ("10.0.0.7", "10.0.0.7"),
        ("[fd00:0::7]", "fd00::7"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ],
)
def test_hosts_are_names_or_addresses(text: str, name: str) -> None:
    assert parse_host(text) == name


@pytest.mark.parametrize(
    "text",
    ["", "tcp://node7:26600", "node7:26600", "a..b", "-a", "a-", "*", "a.*.b", "b\u00fccher.example", "a b", "a\n",
     "300.1.1.1", "fe80::1%eth0", "a" * 64, ".".join(["a" * 60] * 5)],
)  # fmt: skip
def test_what_is_no_host_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="neither a host name nor an IP address"):
        make_certificates(tmp_path / "certs", [text])
    assert not (tmp_path / "certs").exists()


@pytest.mark.parametrize("days", [0, -1, certs.MOST_DAYS + 1])
def test_days_have_a_range(tmp_path: Path, days: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 3650 days, not {days}"):
        make_certificates(tmp_path / "certs", days=days)


def test_without_cryptography_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pymonarch\[tls\]'"):
        make_certificates(tmp_path / "certs")
    assert not (tmp_path / "certs").exists()


def test_this_machine_has_names() -> None:
    names = certs.this_machine()
    assert [parse_host(name) for name in names] == list(names)
    assert {"localhost", "127.0.0.1", "::1"} <= set(names)
