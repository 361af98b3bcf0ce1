"""The three HTTP ports of an observer: its API, the dashboard, the admin API."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct

from tests.fuzz.targets import FuzzedProgram, Target

PATIENCE = 60.0
PATHS = (
    "/", "/topology", "/static/main.js", "/static/", "/api/health", "/api/summary", "/api/endpoints", "/api/message-stats",
    "/api/message-activity", "/api/topology", "/api/dag", "/api/meshes", "/api/meshes/1", "/api/meshes/1/children",
    "/api/meshes/1/ranks/0", "/api/actors", "/api/actors/1", "/api/actors/1/status_events", "/api/actors/1/messages",
    "/api/messages", "/api/message_status_events", "/api/sent_messages", "/api/tables", "/api/hardware", "/api/profiles",
    "/api/profiles/trace-1", "/api/sql", "/api/query", "/api/pyspy_dump", "/api/pyspy/capture", "/SKILL.md", "/v1/admin",
    "/v1/tree", "/v1/nodes", "/v1/schema", "/v1/schema/error", "/v1/openapi.json", "/v1/query", "/v1/config/root", "/v1/root",
    "/v1/pyspy/root", "/v1/pyspy_dump/root", "/v1/pyspy_profile_svg/nobody", "/v1/host:agent.agent@x",
)  # fmt: skip
WORDS = (
    "", "0", "-1", "1", "18446744073709551616", "9" * 400, "1e999", "nan", "inf", "0x10", "%00", "%", "%zz", "%ff%fe",
    "%ed%a0%80", "..", "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "//evil.example", "a" * 5000, "%e2%80%ae", "<script>",
    "'", "true", "\u0130".encode().hex(), "*", ";", "&", "=", "+", "~", "_a", ".git", "%F0%9F%91%91",
)  # fmt: skip
NAMES = (
    "id", "seconds", "class", "mesh_id", "parent_mesh_id", "message_id", "from_actor_id", "to_now", "hide_system", "token",
    "exclude_classes", "native", "locals", "",
)  # fmt: skip
METHODS = (
    "GET",
    "GET",
    "GET",
    "POST",
    "POST",
    "HEAD",
    "PUT",
    "DELETE",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "PATCH",
    "get",
    "X",
)
HEADERS = (
    "host: evil.example", "host: localhost:1", "host:", "origin: http://localhost:1", "origin: null", "origin: \xff",
    "sec-fetch-site: cross-site", "content-type: text/plain", "content-type: application/json; charset=\xff",
    "content-length: 0", "content-length: 99999999999999999999", "content-length: -1", "content-length: 5",
    "transfer-encoding: chunked", "transfer-encoding: gzip, chunked", "expect: 100-continue", "upgrade: websocket",
    "connection: upgrade", "connection: keep-alive", "accept-encoding: gzip", "range: bytes=0-0", "cookie: token=\xff",
    "cookie: a=b; =; \x01", "authorization: Bearer \xff", "authorization: ", "x-forwarded-proto: javascript",
    "x-forwarded-for: 10.0.0.1", "a: " + "b" * 4000, "sec-websocket-key: x",
)  # fmt: skip
VALUES = (
    "null", "true", "1", "-1", "0", "1e999", "9" * 400, "1e308", "0.5", '""', '"SELECT 1"', '"DROP TABLE actors"',
    '"\\ud800"',
    '"\\u0000"', '"SELECT \'\\u202e<script>\'"', '"root"', "[]", "{}", "[" * 3000 + "]" * 3000,
    '{"a":' * 2000 + "1" + "}" * 2000,
    '"' + "x" * 20_000 + '"',
)  # fmt: skip
FIELDS = (
    "sql",
    "timeout",
    "limit",
    "proc_ref",
    "dump_id",
    "pyspy_result_json",
    "duration_s",
    "rate_hz",
    "native",
    "\\ud800",
)


def target(program: FuzzedProgram) -> Target:
    """Returns the observer, at its ports."""
    ports = [program.ports[name] for name in ("api", "dashboard", "admin")]

    def serves() -> None:
        for name, path in (("api", "/api/health"), ("dashboard", "/"), ("admin", "/v1/root")):
            asked = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()
            status = status_of(ask(program.ports[name], asked))
            assert status == 200, f"the owner is answered {status} at {path}"

    return Target(program.observer, program.observer_log, lambda rng: attack(rng, rng.choice(ports)), serves)


def attack(rng: random.Random, port: int) -> None:
    """Says something at that port in one of several ways, and checks what is answered."""
    head, body = drawn(rng)
    if rng.random() < 0.5:
        whole = [*head, f"host: localhost:{port}", "content-type: application/json", f"content-length: {len(body)}"]
        check(ask(port, joined([*whole, "connection: close"]) + body), head[0])
        return
    more = [rng.choice(HEADERS) for _ in range(rng.randrange(6))]
    said = joined([*head, *([f"host: localhost:{port}"] if rng.random() < 0.8 else []), *more]) + body
    said = b"".join([said] * rng.choice((1, 1, 1, 3)))
    if rng.random() < 0.4:
        said = spoilt(rng, said)
    check(talk(rng, port, said), head[0])


def drawn(rng: random.Random) -> tuple[list[str], bytes]:
    """The first line of a request, and a body."""
    path = rng.choice(PATHS)
    if rng.random() < 0.3:
        path = path.rpartition("/")[0] + "/" + rng.choice(WORDS)
    query = "&".join(f"{rng.choice(NAMES)}={rng.choice(WORDS)}" for _ in range(rng.randrange(4)))
    line = f"{rng.choice(METHODS)} {path}{'?' + query if query else ''} HTTP/1.1"
    fields = ", ".join(f'"{rng.choice(FIELDS)}": {rng.choice(VALUES)}' for _ in range(rng.randrange(4)))
    body = rng.choice((f"{{{fields}}}", f"{{{fields}}}", f"{{{fields}}}", rng.choice(VALUES), "", fields))
    return [line], body.encode()


def joined(lines: list[str]) -> bytes:
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def spoilt(rng: random.Random, said: bytes) -> bytes:
    """Returns what was said, with bytes that are others, missing or doubled."""
    data = bytearray(said)
    for _ in range(rng.randrange(1, 8)):
        at = rng.randrange(len(data) + 1)
        change = rng.randrange(4)
        if change == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif change == 1:
            del data[at : at + rng.randrange(1, 20)]
        elif change == 2:
            data[at:at] = rng.randbytes(rng.randrange(1, 10))
        else:
            data[at:at] = data[at : at + 50]
    return bytes(data)


def ask(port: int, said: bytes) -> bytes:
    """All that is answered to a whole request."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(said)
        return rest(connection)


def talk(rng: random.Random, port: int, said: bytes) -> bytes:
    """Some of what is answered to what may be no request: nobody waits for the rest."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection, contextlib.suppress(ConnectionError):
        way = rng.randrange(5)
        if way == 0:  # in pieces
            cut = sorted(rng.randrange(len(said) + 1) for _ in range(3))
            for start, end in zip([0, *cut], [*cut, len(said)], strict=True):
                connection.sendall(said[start:end])
        elif way == 1:  # gone with a reset
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(said)
            return b""
        else:
            connection.sendall(said)
        if way == 2:  # no more follows
            connection.shutdown(socket.SHUT_WR)
            return rest(connection)
        connection.settimeout(0.05)
        return rest(connection)
    return b""


def rest(connection: socket.socket) -> bytes:
    parts = []
    try:
        while data := connection.recv(1 << 16):
            parts.append(data)
    except ConnectionError:
        pass
    except TimeoutError:
        assert connection.gettimeout() != PATIENCE, "no end of an answer"
    return b"".join(parts)


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def check(answer: bytes, line: str) -> None:
    """An answer is one of ours; what went wrong is told in JSON, and is never the server's fault."""
    status = status_of(answer)
    said = f"{line[:200]!r} was answered {answer[:2000]!r}"
    assert not answer or status, said
    assert status not in (500, 501), said
    assert b"Traceback" not in answer, said
    head, _, body = answer.partition(b"\r\n\r\n")
    whole = f"content-length: {len(body)}".encode() in head.lower()
    if status >= 400 and body and whole:
        assert json.loads(body)["error"], said
