"""Tests of what programs give to say who may speak, put together with the environment."""

from __future__ import annotations

import socket
import warnings
from pathlib import Path
from typing import Any

import pytest

from monarch._mesh.start.agent_process import Credentials
from monarch._mesh.start.credentials import TRUST_ALL, credentials, own_credentials
from monarch._wire.auth import Secret

EXPOSED = "tcp://10.0.0.1:22222"
PEMS = {"ca": b"authority", "certificate": b"mine", "private_key": b"key"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MONARCH_SECRET", "MONARCH_SECRET_FILE", "MONARCH_TLS_CA", "MONARCH_TLS_CERT", "MONARCH_TLS_KEY"):
        monkeypatch.delenv(name, raising=False)


def given(*addresses: str, **what: Any) -> Credentials:
    defaults: dict[str, Any] = {"ca": None, "certificate": None, "private_key": None, "secret": None}
    return credentials(**defaults | what, addresses=addresses)


@pytest.mark.parametrize("address", [EXPOSED, "tcp://*:22222", "tcp://somewhere:1", "tcp://[2001:db8::1]:1"])
def test_nobody_is_trusted_by_accident(address: str) -> None:
    with pytest.raises(ValueError, match="nothing protects ") as raised:
        given(address)
    assert address in str(raised.value) and "MONARCH_SECRET_FILE" in str(raised.value)
    with pytest.warns(UserWarning, match="whoever can connect"):
        assert given(address, ca=TRUST_ALL) == Credentials()


def test_a_unix_socket_takes_our_own_user_only_and_may_go_without() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert given("ipc:///tmp/w") == given("ipc:///tmp/w", ca=TRUST_ALL) == Credentials()


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "tcp://localhost:1", "tcp://[::1]:1"])
def test_a_port_of_this_machine_is_open_to_its_users_and_has_to_be_asked_for(address: str) -> None:
    with pytest.raises(ValueError, match="nothing protects "):
        given(address)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert given(address, ca=TRUST_ALL) == Credentials()


def test_many_addresses_are_not_all_listed() -> None:
    with pytest.raises(ValueError, match="and 3 more"):
        given(*(f"tcp://10.0.0.{number}:1" for number in range(1, 8)))


def test_a_secret_given_counts_before_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MONARCH_SECRET", "of the environment, long")
    assert given(EXPOSED).secret == b"of the environment, long"
    file = tmp_path / "secret"
    file.write_text("of the file, and long\n")
    file.chmod(0o600)
    monkeypatch.setenv("MONARCH_SECRET_FILE", str(file))
    assert given(EXPOSED).secret == b"of the file, and long"
    assert given(EXPOSED, secret="given and long enough").secret == b"given and long enough"
    assert given(EXPOSED, secret=Secret(b"given and long enough")).secret == b"given and long enough"
    assert given(EXPOSED, secret="given and long enough", ca=TRUST_ALL).secret == b"given and long enough"


def test_certificates_are_bytes_or_files_or_named_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = Credentials(b"", **PEMS)
    assert given(EXPOSED, **PEMS) == expected
    files = {name: tmp_path / name for name in PEMS}
    for name, file in files.items():
        file.write_bytes(PEMS[name])
        file.chmod(0o644)
    with pytest.warns(UserWarning, match=r"private key '.*private_key' may be read by others \(mode 0644\)"):
        assert given(EXPOSED, **files) == expected
    files["private_key"].chmod(0o600)
    assert given(EXPOSED, **files) == given(EXPOSED, **{name: str(file) for name, file in files.items()}) == expected
    for variable, name in (("CA", "ca"), ("CERT", "certificate"), ("KEY", "private_key")):
        monkeypatch.setenv(f"MONARCH_TLS_{variable}", str(files[name]))
    assert given(EXPOSED) == expected
    assert own_credentials().ca == b"authority"
    with pytest.warns(
        UserWarning, match="without a secret"
    ):  # asked for: no certificates, whatever the environment says
        assert given(EXPOSED, ca=TRUST_ALL) == Credentials()


def test_certificates_that_are_incomplete_or_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="missing: certificate, private_key"):
        given(EXPOSED, ca=b"authority")
    with pytest.raises(ValueError, match=r"no.pem' cannot be read: No such file"):
        given(EXPOSED, **PEMS | {"ca": tmp_path / "no.pem"})
    with pytest.raises(ValueError, match="uses no certificates"):
        given(EXPOSED, ca=TRUST_ALL, certificate=b"mine")


def test_a_client_that_listens_always_has_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = own_credentials(), own_credentials()
    assert first.secret and first.secret != second.secret
    monkeypatch.setenv("MONARCH_SECRET", "of the job, and long")
    assert own_credentials().secret == b"of the job, and long"


def test_no_secret_is_shown() -> None:
    shown = repr(given(EXPOSED, secret="never to be seen", **PEMS))
    assert shown == "<Credentials with secret, with TLS>"
    assert repr(Credentials()) == "<Credentials without secret, without TLS>"


@pytest.mark.parametrize("address", ["tls://10.0.0.1:1", "metatls://h:1", "me@tls://h:1", "tcp://h:1@tls://*:1"])
@pytest.mark.parametrize(
    "what", [{"secret": "a long one"}, {"ca": TRUST_ALL}, {"secret": "a long one", "ca": TRUST_ALL}]
)
def test_an_address_that_wants_certificates_is_never_spoken_to_in_plain(address: str, what: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="wants TLS, and no certificates are given") as raised:
        given("tcp://fine:1", address, **what)
    assert address in str(raised.value) and "monarch certs" in str(raised.value)
    assert given(address, **PEMS).ca == b"authority"


def test_of_an_alias_whoever_reaches_either_place_counts_and_for_who_dials_that_place() -> None:
    for address in ("tcp://10.0.0.1:1@tcp://127.0.0.1:1", "tcp://127.0.0.1:1@tcp://*:1", "tcp://h:1@ipc:///tmp/w"):
        with pytest.warns(UserWarning, match="whoever can connect"):
            given(address, ca=TRUST_ALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert given("tcp://127.0.0.1:1@tcp://localhost:1", ca=TRUST_ALL) == Credentials()
        assert given("tcp://127.0.0.1:1@tcp://*:1", ca=TRUST_ALL, dialled=True) == Credentials()
    with pytest.warns(UserWarning, match="whoever can connect"):
        given("tcp://10.0.0.1:1@ipc:///tmp/w", ca=TRUST_ALL, dialled=True)


def test_of_a_descriptor_its_socket_counts_and_not_what_is_said_of_it(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as everywhere, pytest.warns(UserWarning, match="whoever can connect"):
        given(f"tcp://127.0.0.1:fd{everywhere.fileno()}", ca=TRUST_ALL)
    with socket.create_server(("127.0.0.1", 0)) as here, warnings.catch_warnings():
        warnings.simplefilter("error")
        given(f"tcp://127.0.0.1:fd{here.fileno()}", ca=TRUST_ALL)
        given(f"tcp://*:fd{here.fileno()}", ca=TRUST_ALL)
        assert here.getsockname()
    with socket.socket(socket.AF_UNIX) as ours, warnings.catch_warnings():
        warnings.simplefilter("error")
        ours.bind(str(tmp_path / "s"))
        given(f"tcp://127.0.0.1:fd{ours.fileno()}")
        assert given("tcp://127.0.0.1:fd9999") == Credentials()  # that it is not open is said by who tries to listen
