"""Attacks by visitors who type SQL over HTTP, of any form."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import struct
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from monarch.telemetry.client import QueryEngineClient
from monarch.telemetry.tables import BY_SNAPSHOT
from monarch.telemetry.tables import TABLES as RECORDED
from tests.fuzz.http import PATIENCE, ask, check, joined, status_of
from tests.fuzz.targets import FuzzedProgram, Target
from tests.support import hostile_queries

TABLES = (
    "actors",
    "meshes",
    "messages",
    "message_status_events",
    "snapshots",
    "telemetry_sources",
    "nowhere",
    "range(10)",
)
COLUMNS = (
    "id",
    "*",
    "rank",
    "full_name",
    "display_name",
    "timestamp_us",
    "count(*)",
    "nothing",
    "1",
    "NULL",
    "'\u202e'",
)
VALUES = (
    "1",
    "-1",
    "9" * 400,
    "1e999",
    "NULL",
    "'x'",
    "''",
    "'%'",
    "x'00'",
    "TRUE",
    "[1, 2]",
    "{'a': 1}",
    "DATE '0001-01-01'",
)
CALLS = (
    "json_transform('{0}', '\"VARCHAR\"')", "levenshtein(repeat('a', 20000), repeat('b', 20000))", "repeat('x', 1000000)",
    "read_text('/etc/passwd')", "getenv('HOME')", "current_setting('threads')", "regexp_matches(repeat('a', 5000), '(a+)+$')",
    "sum(range)", "list_sort(range(100000))", "md5(repeat('x', 1000))", "error('stop')", "chr(0)", "pg_sleep(1)",
)  # fmt: skip
WHOLE = (
    "SELECT * FROM read_csv('/etc/passwd')", "COPY actors TO '/tmp/never'", "ATTACH '/tmp/never' AS other", "INSTALL httpfs",
    "LOAD httpfs", "SET threads = 100", "PRAGMA database_list", "CREATE TABLE x (a INT)", "DROP TABLE actors",
    "DELETE FROM actors", "EXPORT DATABASE '/tmp/never'", "CALL pragma_version()", "EXPLAIN ANALYZE SELECT 1", "SHOW TABLES",
    "WITH RECURSIVE r AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM r) SELECT count(*) FROM r",
    "SELECT count(*) FROM range(1000000000) a, range(1000000000) b", "SELECT * FROM range(3000000)", "BEGIN", "COMMIT", ";",
    "--", "/*", "SELECT repeat('x', 100000) FROM range(3000)", "FROM '/etc/passwd'", "SELECT * FROM glob('/*')",
    "VACUUM", "CHECKPOINT",
)  # fmt: skip
STATUSES = (200, 400, 408, 503)


def target(program: FuzzedProgram) -> Target:
    """Returns the observer, at the port where it takes SQL."""
    port = program.ports["api"]
    before, files = rows(port), os.listdir(program.folder)
    assert before["messages"].total() > 100, before["messages"]

    def serves() -> None:
        after = rows(port)
        lost = {name: (before[name] - after[name]).total() for name in before}
        assert not any(lost.values()), f"of the rows before, some have gone: {lost}"
        assert os.listdir(program.folder) == files
        print({name: (count.total(), after[name].total()) for name, count in before.items() if count}, flush=True)

    return Target(program.observer, program.observer_log, lambda rng: attack(rng, port, program.folder), serves)


def rows(port: int) -> dict[str, Counter[str]]:
    """All that is recorded, by table; not what later snapshots and later words of a process take the place of."""
    client = QueryEngineClient(f"http://localhost:{port}", PATIENCE)
    tables = [name for name, table in RECORDED.items() if table.leaves != BY_SNAPSHOT and name != "telemetry_sources"]
    return {name: Counter(map(str, client.query(f"SELECT * FROM {name}")["rows"])) for name in tables}


def attack(rng: random.Random, port: int, folder: str) -> None:
    """Asks one query, whatever it is, or several at a time, and checks how they are answered."""
    each = [random.Random(rng.random()) for _ in range(rng.choice((*[1] * 9, 16)))]
    with ThreadPoolExecutor(len(each)) as threads:
        list(threads.map(lambda one: ask_any(one, port, folder), each))


def ask_any(rng: random.Random, port: int, folder: str) -> None:
    limit = rng.choice((None, 1, 1000, 10**9))
    sql = hostile_queries.attack(rng, folder) if rng.random() < 0.5 else statement(rng)
    said = request({"sql": sql, "timeout": rng.choice((0.05, 0.2, 0.5, 0.5, 2.0)), "limit": limit})
    if rng.random() < 0.2:
        leave(rng, port, said)
        return
    answer = ask(port, said)
    about = f"{sql[:500]!r} was answered {answer[:2000]!r}"
    assert status_of(answer) in STATUSES, about
    assert b"root:x:" not in answer and b"PATH=" not in answer, about
    check(answer, sql)


def leave(rng: random.Random, port: int, said: bytes) -> None:
    """Asks, and goes before there is a whole answer."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection, contextlib.suppress(OSError):
        connection.sendall(said[: rng.choice((len(said), len(said), rng.randrange(len(said))))])
        connection.settimeout(rng.choice((0.001, 0.1, 1.0)))
        connection.recv(rng.choice((1, 1 << 16)))
        if rng.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def request(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = (
        "POST /api/query HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(data)}",
    )
    return joined([*head, "connection: close"]) + data


def statement(rng: random.Random) -> str:
    if rng.random() < 0.2:
        return rng.choice(WHOLE)
    sql = f"SELECT {expression(rng, 4)} FROM {rng.choice(TABLES)}"
    if rng.random() < 0.3:
        sql += f" WHERE {expression(rng, 3)} = {rng.choice(VALUES)}"
    if rng.random() < 0.1:
        sql = f"SELECT {'(' * 3000}1{')' * 3000}"
    if rng.random() < 0.1:
        sql = f"{sql}; {rng.choice(WHOLE)}"
    if rng.random() < 0.2:
        at = rng.randrange(len(sql))
        sql = sql[:at] + rng.choice(("\0", "\u202e", "'", '"', "$$", "\U0001f451", "/*", ";", "\n")) + sql[at:]
    return sql if rng.random() < 0.9 else sql[: rng.randrange(len(sql))]


def expression(rng: random.Random, depth: int) -> str:
    if not depth or rng.random() < 0.3:
        return rng.choice((*COLUMNS, *VALUES))
    kind = rng.randrange(4)
    inner = expression(rng, depth - 1)
    if kind == 0:
        return rng.choice(CALLS).replace("{0}", "[" * rng.choice((1, 100, 5000)))
    if kind == 1:
        return f"({inner} {rng.choice(('+', '/', '||', '<', 'IN', 'LIKE', 'AND', '::'))} {expression(rng, depth - 1)})"
    if kind == 2:
        return f"{rng.choice(('abs', 'max', 'upper', 'to_json', 'list', 'unnest', 'nobody', 'epoch_us'))}({inner})"
    return f"(SELECT {inner} FROM {rng.choice(TABLES)} LIMIT 1)"
