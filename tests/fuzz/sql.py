"""Attacks by visitors who type SQL over HTTP, of any form."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.fuzz.http import ask, check, joined, status_of
from tests.fuzz.targets import FuzzedProgram, Target

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

    def serves() -> None:
        answer = asked(port, {"sql": "SELECT count(*) AS count FROM actors", "timeout": 60})
        assert status_of(answer) == 200, f"the owner is answered {answer[:2000]!r}"
        assert b'"count":0' not in answer, "the rows have gone"

    return Target(program.observer, program.observer_log, lambda rng: attack(rng, port), serves)


def attack(rng: random.Random, port: int) -> None:
    """Asks one query, whatever it is, and checks how it is answered."""
    limit = rng.choice((None, 1, 1000, 10**9))
    sql = statement(rng)
    answer = asked(port, {"sql": sql, "timeout": rng.choice((0.05, 0.2, 0.5)), "limit": limit})
    said = f"{sql[:500]!r} was answered {answer[:2000]!r}"
    assert status_of(answer) in STATUSES, said
    assert b"root:x:" not in answer, said
    check(answer, sql)


def asked(port: int, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = (
        "POST /api/query HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(data)}",
    )
    return ask(port, joined([*head, "connection: close"]) + data)


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
