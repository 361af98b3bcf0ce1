"""Which server an address means, and how it is spoken to. Pure."""

from __future__ import annotations

import pytest

from monarch.admin.screen.connection import Connection, Tls, plan

CERTIFICATES = {"MONARCH_TLS_CA": "ca", "MONARCH_TLS_CERT": "cert", "MONARCH_TLS_KEY": "key"}


@pytest.mark.parametrize(
    ("address", "options", "found"),
    [
        ("http://localhost:1729", {}, Connection("http://localhost:1729", "", None)),
        ("http://h:1/?token=abc", {}, Connection("http://h:1", "abc", None)),
        ("h:1", {}, Connection("https://h:1", "", Tls())),
        ("h:1", {"environ": {"MONARCH_ADMIN_TOKEN": "abc"}}, Connection("https://h:1", "abc", Tls())),
        ("http://h:1/?token=x", {"environ": {"MONARCH_ADMIN_TOKEN": "abc"}}, Connection("http://h:1", "x", None)),
        ("h", {}, Connection("https://h:1729", "", Tls())),
        ("h", {"port": 5}, Connection("https://h:5", "", Tls())),
        ("h:7", {"port": 5}, Connection("https://h:7", "", Tls())),
        ("https://h", {}, Connection("https://h", "", Tls())),
        ("[::1]:1729", {"plaintext": True}, Connection("http://[::1]:1729", "", None)),
        ("h:1", {"plaintext": True}, Connection("http://h:1", "", None)),
        ("h:1", {"tls": Tls("a", "b", "c")}, Connection("https://h:1", "", Tls("a", "b", "c"))),
        ("h:1", {"environ": CERTIFICATES}, Connection("https://h:1", "", Tls("ca", "cert", "key"))),
        (
            "h:1",
            {"environ": {"MONARCH_TLS_CA": "ca", "MONARCH_TLS_CERT": "x"}},
            Connection("https://h:1", "", Tls("ca")),
        ),
        ("http://h:1", {"environ": CERTIFICATES}, Connection("http://h:1", "", None)),
    ],
)
def test_how_an_address_is_read(address: str, options: dict[str, object], found: Connection) -> None:
    assert plan(address, **({"environ": {}} | options)) == found  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("address", "options", "said"),
    [
        ("ftp://h", {}, "http:// or https://"),
        ("http://", {}, "host:port or a URL"),
        ("h:99999", {}, "a port is 1 to 65535"),
        ("http://h", {"tls": Tls("ca")}, "contradict each other"),
        ("h", {"plaintext": True, "tls": Tls("ca")}, "contradict each other"),
        ("h", {"tls": Tls("ca", "cert")}, "--tls-cert and --tls-key are given together"),
        ("h", {"tls": Tls("", "cert", "key")}, "need --tls-ca"),
    ],
)
def test_what_contradicts_itself(address: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan(address, **({"environ": {}} | options))  # type: ignore[arg-type]
