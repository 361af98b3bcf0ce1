"""SQL that means harm."""

from __future__ import annotations

import random
from pathlib import Path

ENDLESS = "SELECT count(*) FROM range(1000000000) a, range(1000) b"
WRITES = (
    "DROP TABLE snapshots", "DROP SCHEMA datafusion.public CASCADE", "DELETE FROM snapshots", "TRUNCATE snapshots",
    "UPDATE snapshots SET snapshot_ts = 7", "INSERT INTO snapshots SELECT * FROM snapshots",
    "ALTER TABLE snapshots RENAME TO x", "ALTER TABLE snapshots DROP COLUMN snapshot_ts",
    "CREATE OR REPLACE TABLE snapshots (a INT)", "CREATE VIEW x AS SELECT 1",
    "CREATE TEMP TABLE snapshots AS SELECT 1", "CREATE MACRO count(a) AS 0", "WITH x AS (SELECT 1) DELETE FROM snapshots",
    "BEGIN; DELETE FROM snapshots; COMMIT", "PREPARE x AS DELETE FROM snapshots", "EXECUTE x", "VACUUM FULL", "CHECKPOINT",
    "MERGE INTO snapshots USING snapshots s ON TRUE WHEN MATCHED THEN DELETE", "DETACH datafusion", "USE system",
    "PRAGMA enable_profiling", "PRAGMA drop_snapshots", "CALL force_checkpoint()", "SET VARIABLE x = 1", "RESET ALL",
)  # fmt: skip
READERS = ("read_blob", "read_csv", "read_json", "read_parquet", "parquet_metadata", "sniff_csv", "read_ndjson_objects")


def levenshtein(size: int) -> str:
    """Returns what the engine does not stop when it is asked to."""
    return f"SELECT levenshtein(repeat('a', {size}), repeat('b', {size}))"


def nested(depth: int) -> str:
    """Returns what is too deep for the engine's stack."""
    return "SELECT json_transform('" + "[" * depth + "]" * depth + "', '" + "[" * depth + '"INT"' + "]" * depth + "')"


def attack(draw: random.Random, folder: Path | str) -> str:
    """Returns one of many that want what a query may not have: files below `folder`, other rows, no end, all memory."""
    size = draw.randrange(100_000, 400_000)
    return draw.choice(
        [
            nested(draw.randrange(5_000, 31_000)),
            levenshtein(size),
            ENDLESS,
            f"SELECT count(*) FROM snapshots a, range({size * 10_000}) b, range({size}) c",
            "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t",
            "WITH RECURSIVE t(s) AS (SELECT 'a' UNION ALL SELECT s || s FROM t) SELECT max(length(s)) FROM t",
            f"SELECT repeat('x', {size * 10_000})",
            f"SELECT repeat('x', {size}) FROM range(100000)",
            f"SELECT list_sum(range({size * 10_000}))",
            f"SELECT string_agg(repeat('x', {size}), ',') FROM range(100000)",
            f"SELECT * FROM range({size * 1_000}) ORDER BY hash(range)",
            f"SELECT regexp_matches(repeat('a', {size}), '(a*)*(a*)*b')",
            "SELECT " + "(" * draw.randrange(1_000, 100_000) + "1",
            "SELECT " + "-" * 2 + "\n" + "+" * draw.randrange(1_000, 100_000) + "1",
            "SELECT " + " + ".join(["1"] * draw.randrange(1_000, 60_000)),
            f"COPY snapshots TO '{folder}/out.csv'",
            f"COPY (SELECT repeat('x', {size})) TO '{folder}/out.parquet'",
            f"ATTACH '{folder}/a.db'",
            f"EXPORT DATABASE '{folder}/all'",
            f"SELECT * FROM read_text('{folder}/secret')",
            "SELECT * FROM read_text('/proc/self/environ')",
            f"SELECT * FROM '{folder}/secret'",
            f"SELECT * FROM glob('{folder}/*')",
            "SELECT getenv('HOME')",
            draw.choice(["INSTALL httpfs", "LOAD httpfs", "PRAGMA database_list", "SET threads = 99"]),
            "SET enable_external_access = true",
            "SET memory_limit = '100GB'",
            draw.choice(WRITES),
            f"SELECT 1; {draw.choice(WRITES)}",
            f"SELECT * FROM query('{draw.choice(WRITES)}')",
            f"SELECT * FROM {draw.choice(READERS)}('{folder}/secret')",
            "SELECT " + "[" * (depth := draw.randrange(10, 20_000)) + "1" + "]" * depth,
            "SELECT * FROM (" * (depth % 3_000) + "SELECT 1" + ")" * (depth % 3_000),
            "SELECT " + "CASE WHEN TRUE THEN " * (depth % 3_000) + "1" + " END" * (depth % 3_000),
            "SELECT count(*) FROM " + ", ".join(f"actors a{number}" for number in range(draw.randrange(2, 300))),
            f"SELECT count(*) FROM range({size}) t(a) GROUP BY CUBE ({', '.join(f'a % {n}' for n in range(1, 16))})",
            f"SELECT 1 IN ({', '.join(map(str, range(size // 4)))})",
            f"SELECT list_transform(range({size}), x -> list_sum(range({size})))",
            f"SELECT {', '.join(f'repeat(chr(120), {size}) AS c{n}' for n in range(draw.randrange(2, 1_000)))}",
            "".join(chr(draw.randrange(1, 0xD800)) for _ in range(draw.randrange(1, 3_000))),
            "SELECT * FROM duckdb_secrets(), duckdb_settings(), pragma_user_agent()",
        ]
    )  # fmt: skip
