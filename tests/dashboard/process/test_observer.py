"""The process beside a program: started once, asked for more, ended with its owner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from monarch._http import server as http_server
from monarch.dashboard.process import observer_config
from monarch.dashboard.process.launcher import Observer, ObserverFailed
from monarch.dashboard.process.observer_config import ObserverConfig
from monarch.telemetry.client import QueryEngineClient
from tests.support.processes import Watch
from tests.support.tiers import full

# --- what is served, decided


def test_the_first_who_opens_a_part_says_how() -> None:
    first = ObserverConfig(telemetry=True, retention_secs=10.0)
    then = observer_config.more(
        first, ObserverConfig(telemetry=True, retention_secs=20.0, admin=True, admin_addr="a:1")
    )
    assert then == ObserverConfig(telemetry=True, retention_secs=10.0, admin=True, admin_addr="a:1")
    assert observer_config.ignored(first, ObserverConfig(telemetry=True, retention_secs=20.0)) == ["retention_secs"]
    assert observer_config.ignored(first, ObserverConfig(admin=True, retention_secs=20.0)) == []


def test_a_port_that_is_taken_is_replaced_and_that_is_said() -> None:
    taken, note = http_server.listen("127.0.0.1", 0)
    with taken:
        assert note == ""
        port = taken.getsockname()[1]
        other, note = http_server.listen("127.0.0.1", port)
        with other:
            assert note == f"port {port} is taken: {other.getsockname()[1]} instead"


def test_an_address_that_is_not_of_this_machine_is_an_error() -> None:
    with pytest.raises(OSError):
        http_server.listen("192.0.2.1", 0)


@pytest.mark.parametrize(
    ("host", "certificate", "url"),
    [
        ("127.0.0.1", "", "http://localhost:5"),
        ("::1", "", "http://localhost:5"),
        ("127.0.0.2", "", "http://127.0.0.2:5"),
        ("0.0.0.0", "", f"http://{socket.gethostname()}:5/?token=t"),
        ("10.0.0.1", "c.pem", "https://10.0.0.1:5/?token=t"),
        ("fd00::1", "", "http://[fd00::1]:5/?token=t"),
    ],
    ids=["loopback", "IPv6 loopback", "another loopback", "everywhere", "TLS", "IPv6"],
)
def test_the_url_is_one_that_people_can_open(host: str, certificate: str, url: str) -> None:
    assert http_server.url_of(http_server.Site([], host, 0, "t", certificate), (host, 5)) == url


# --- the process


@contextmanager
def folder() -> Iterator[str]:
    """One with a short path: a socket's is bounded."""
    with tempfile.TemporaryDirectory(prefix="mo") as path:
        yield os.path.join(path, "observer")


@pytest.fixture(scope="module")
def observer() -> Iterator[Observer]:
    with folder() as path:
        made = Observer(path)
        try:
            yield made
        finally:
            made.end()


def test_it_starts_once_and_serves_more_when_asked(observer: Observer) -> None:
    first = observer.serve(ObserverConfig(telemetry=True))
    assert first.telemetry_url is not None and first.dashboard_url is None and first.notes == []
    assert QueryEngineClient(first.telemetry_url, 60).query("SELECT 1 AS one")["rows"] == [{"one": 1}]
    then = observer.serve(ObserverConfig(telemetry=True, retention_secs=5.0, dashboard=True, dashboard_port=0))
    assert (then.pid, then.telemetry_url) == (first.pid, first.telemetry_url)
    assert then.dashboard_url is not None
    assert then.notes == ["retention_secs stays as it was first given: 3600.0"]


def test_its_folder_is_for_this_user_only(observer: Observer) -> None:
    observer.serve(ObserverConfig())
    assert Path(observer.folder).stat().st_mode & 0o777 == 0o700
    assert Path(observer.folder, "log").stat().st_mode & 0o777 == 0o600


def test_what_is_wrong_with_a_query_is_said_with_its_status(observer: Observer) -> None:
    url = observer.serve(ObserverConfig(telemetry=True)).telemetry_url
    assert url is not None
    client = QueryEngineClient(url, 60)
    for sql, status, reason in (
        ("SELEKT 1", 400, "Parser Error"),
        ("DROP TABLE actors", 400, "telemetry is read, not written"),
        ("", 400, "missing 'sql' in request body"),
    ):
        with pytest.raises(urllib.error.HTTPError, match=reason) as error:
            client.query(sql)
        assert error.value.code == status
    with pytest.raises(urllib.error.HTTPError, match=r"longer than 0\.5 s") as error:
        client.query("SELECT count(*) FROM range(1000000000) a, range(1000) b", timeout=0.5)
    assert error.value.code == 408


@full
def test_beyond_this_machine_it_speaks_tls_and_wants_the_token(tmp_path: Path) -> None:
    """With the program's certificates; without them it says what that means."""
    import ssl

    from monarch.tools.certs import make_certificates

    made = make_certificates(str(tmp_path / "certs"), ["localhost"], 1)
    files = {"certificate": str(made.certificate), "private_key": str(made.private_key)}
    with folder() as path:
        observer = Observer(path)
        try:
            wanted = ObserverConfig(dashboard=True, dashboard_host="0.0.0.0", dashboard_port=0, **files)
            url = observer.serve(wanted).dashboard_url
            assert url is not None and url.startswith("https://") and observer.token in url
            port = int(url.partition("/?")[0].rpartition(":")[2])
            trusted = ssl.create_default_context(cafile=str(made.ca))
            place = f"https://localhost:{port}"
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"{place}/", context=trusted, timeout=60)
            request = urllib.request.Request(f"{place}/", headers={"Authorization": f"Bearer {observer.token}"})
            with urllib.request.urlopen(request, context=trusted, timeout=60) as page:
                assert page.status == 200
            plain = observer.serve(ObserverConfig(admin=True, admin_addr="0.0.0.0:0"))
            assert plain.admin_url is not None and plain.admin_url.startswith(
                "https://"
            )  # the first one's certificates
        finally:
            observer.end()
    with folder() as path:
        observer = Observer(path)
        try:
            notes = observer.serve(ObserverConfig(admin=True, admin_addr="0.0.0.0:0")).notes
            assert any("without TLS" in note and "monarch certs" in note for note in notes)
        finally:
            observer.end()


def test_who_goes_away_cancels_the_query(observer: Observer) -> None:
    url = observer.serve(ObserverConfig(telemetry=True)).telemetry_url
    assert url is not None
    host, _, port = url.removeprefix("http://").partition(":")
    body = b'{"sql": "SELECT count(*) FROM range(1000000000) a, range(1000) b", "timeout": 250}'
    kind = "Content-Type: application/json\r\n"
    head = f"POST /api/query HTTP/1.1\r\nHost: {host}:{port}\r\n{kind}Content-Length: {len(body)}\r\n\r\n".encode()
    for _ in range(8):  # as many as run at a time: if they went on, nobody else's would
        with socket.create_connection((host, int(port)), 60) as connection:
            connection.sendall(head + body)
    assert QueryEngineClient(url, 60).query("SELECT 1 AS one", timeout=60)["rows"] == [{"one": 1}]


def test_what_cannot_be_served_is_told_to_who_asks(observer: Observer) -> None:
    with pytest.raises(ObserverFailed, match="an address is host:port, got 'nonsense'"):
        observer.serve(ObserverConfig(admin=True, admin_addr="nonsense"))
    served = observer.serve(ObserverConfig(admin=True, admin_addr="192.0.2.1:1"))
    assert served.admin_url is None
    assert "admin cannot be served at 192.0.2.1:1" in served.notes[-1]


def test_one_that_was_killed_is_started_again() -> None:
    with folder() as path:
        observer = Observer(path)
        try:
            first = observer.serve(ObserverConfig()).pid
            watch = Watch([first])
            os.kill(first, signal.SIGKILL)
            assert watch.survivors(60) == {}
            assert observer.serve(ObserverConfig()).pid != first
        finally:
            observer.end()


@full
def test_one_that_is_killed_again_and_again_is_started_each_time() -> None:
    """A process that was just killed still takes connections for a moment, and holds its lock."""
    with folder() as path:
        observer = Observer(path)
        try:
            pids = []
            for _ in range(6):
                pids.append(observer.serve(ObserverConfig()).pid)
                os.kill(pids[-1], signal.SIGKILL)
            assert len(set(pids)) == 6
        finally:
            observer.end()


@full
def test_it_ends_with_the_process_that_started_it() -> None:
    script = """
import sys
from monarch.dashboard.process import launcher
print(launcher.start(sys.argv[1]).pid, flush=True)
sys.stdin.read()
"""
    with folder() as path:
        owner = subprocess.Popen(
            [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with owner:
            assert owner.stdout is not None
            watch = Watch([int(owner.stdout.readline())])
            owner.kill()
        assert watch.survivors(60) == {}


@full
def test_one_that_cannot_start_says_what_it_wrote() -> None:
    with folder() as path:
        Path(path).mkdir(mode=0o700)
        Path(path, "lock").mkdir()
        with pytest.raises(ObserverFailed, match=r"(?s)the observer did not start; it wrote: .*IsADirectoryError"):
            Observer(path).serve(ObserverConfig())
