"""Tests of what the screen takes for an answer of an admin server."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler

import pytest

from monarch.admin.screen import sources
from monarch.admin.screen.connection import AdminServer
from monarch.admin.screen.sources import HttpSource, NoAnswer
from tests.support.web import served


class Anybody(BaseHTTPRequestHandler):
    """Answers by the path of the request."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"[" * (100_000 if self.path == "/v1/doctor" else 2 << 20))


def test_who_is_no_admin_server_costs_no_memory_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_LARGEST", 1 << 20)
    with served(Anybody) as other:
        source = HttpSource(AdminServer(f"http://{other}", "", None))
        with pytest.raises(NoAnswer, match=r"http://127.* is no admin server: it answers more than 1 MiB"):
            source.nodes()
        with pytest.raises(NoAnswer, match="is no admin server of this version"):
            source.doctor()
