"""Tests of which server an address means, and how it is spoken to. Pure."""

from __future__ import annotations

import pytest

from monarch.admin.screen.connection import AdminServer, TlsFiles, plan

CERTIFICATES = {"MONARCH_TLS_CA": "ca", "MONARCH_TLS_CERT": "cert", "MONARCH_TLS_KEY": "key"}


@pytest.mark.parametrize(
    ("address", "options", "found"),
    [
        ("http://localhost:1729", {}, AdminServer("http://localhost:1729", "", None)),
        ("http://h:1/?token=abc", {}, AdminServer("http://h:1", "abc", None)),
        ("h:1", {}, AdminServer("https://h:1", "", TlsFiles())),
        ("h:1", {"environ": {"MONARCH_ADMIN_TOKEN": "abc"}}, AdminServer("https://h:1", "abc", TlsFiles())),
        ("http://h:1/?token=x", {"environ": {"MONARCH_ADMIN_TOKEN": "abc"}}, AdminServer("http://h:1", "x", None)),
        ("h", {}, AdminServer("https://h:1729", "", TlsFiles())),
        ("h", {"port": 5}, AdminServer("https://h:5", "", TlsFiles())),
        ("h:7", {"port": 5}, AdminServer("https://h:7", "", TlsFiles())),
        ("https://h", {}, AdminServer("https://h", "", TlsFiles())),
        ("[::1]:1729", {"plaintext": True}, AdminServer("http://[::1]:1729", "", None)),
        ("h:1", {"plaintext": True}, AdminServer("http://h:1", "", None)),
        ("h:1", {"tls": TlsFiles("a", "b", "c")}, AdminServer("https://h:1", "", TlsFiles("a", "b", "c"))),
        ("h:1", {"environ": CERTIFICATES}, AdminServer("https://h:1", "", TlsFiles("ca", "cert", "key"))),
        (
            "h:1",
            {"environ": {"MONARCH_TLS_CA": "ca", "MONARCH_TLS_CERT": "x"}},
            AdminServer("https://h:1", "", TlsFiles("ca")),
        ),
        ("http://h:1", {"environ": CERTIFICATES}, AdminServer("http://h:1", "", None)),
    ],
)
def test_how_an_address_is_read(address: str, options: dict[str, object], found: AdminServer) -> None:
    assert plan(address, **({"environ": {}} | options)) == found  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("address", "options", "said"),
    [
        ("ftp://h", {}, "http:// or https://"),
        ("http://", {}, "host:port or a URL"),
        ("h:99999", {}, "a port is 1 to 65535"),
        ("http://h", {"tls": TlsFiles("ca")}, "contradict each other"),
        ("h", {"plaintext": True, "tls": TlsFiles("ca")}, "contradict each other"),
        ("h", {"tls": TlsFiles("ca", "cert")}, "--tls-cert and --tls-key are given together"),
        ("h", {"tls": TlsFiles("", "cert", "key")}, "need --tls-ca"),
    ],
)
def test_what_contradicts_itself(address: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan(address, **({"environ": {}} | options))  # type: ignore[arg-type]
