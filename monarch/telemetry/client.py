"""Asks for telemetry over HTTP, from a program or a notebook; needs nothing that is not installed."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.parse
import urllib.request
from email.message import Message
from typing import Any

LARGEST = 288 << 20  # bytes of an answer: the rows of one are at most 256 MiB


class QueryEngineClient:
    """SQL over what is recorded. `url`: as `JobState.telemetry_url` or `monarch.telemetry.start().url` has it."""

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        self.url = url.rstrip("/")
        self.timeout = timeout
        # What is asked stays on this machine: no proxy is to see it.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def query(self, sql: str, timeout: float | None = None) -> dict[str, Any]:
        """`{"rows": [{column: value}, ...], "missing_hosts": [...]}`; ids are whole numbers, times microseconds since 1970.

        `urllib.error.HTTPError` 400 with the engine's words as its reason for SQL that fails or would write, 408 when it
        takes longer than `timeout` seconds, 503 when too many others run and wait. RuntimeError when what
        answers is no telemetry.
        """
        seconds = self.timeout if timeout is None else timeout
        reply = self._post("/api/query", {"sql": sql, "timeout": seconds}, seconds + 2.0)
        rows = reply.get("rows") if isinstance(reply, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise RuntimeError(f"invalid telemetry query response from {self.url}: no rows in {str(reply)[:200]!r}")
        if "error" in reply:  # of a query that failed when some rows were on their way
            status = 408 if "took longer than" in str(reply["error"]) else 400
            raise _error(f"{self.url}/api/query", status, str(reply["error"]), Message())
        return dict(reply)

    def metrics(self, match: str = "", mesh: str | None = None) -> dict[str, Any]:
        """Returns what `monarch.metrics.log` was given, folded over ranks: `curves` whose name has `match` in it, a column a
        list; `names`, mesh and name of all; `left_out`, how many values are of curves that were too many.

        `urllib.error.URLError` when nobody answers; RuntimeError when what answers is no telemetry.

        Since 0.2.0.
        """
        asked = {"match": match, **({} if mesh is None else {"mesh": mesh})}
        reply = self._ask(f"/api/metrics?{urllib.parse.urlencode(asked)}", None, self.timeout)
        if not isinstance(reply, dict) or not {"curves", "left_out"} <= set(reply):
            raise RuntimeError(f"invalid telemetry response from {self.url}: no curves in {str(reply)[:200]!r}")
        return reply

    def store_pyspy_dump(self, dump_id: str, proc_ref: str, pyspy_result_json: str) -> None:
        """Keeps a stack dump, the JSON that `/v1/pyspy/{proc}` gives, in the tables `pyspy_*`."""
        body = {"dump_id": dump_id, "proc_ref": proc_ref, "pyspy_result_json": pyspy_result_json}
        self._post("/api/pyspy_dump", body, self.timeout)

    def _post(self, path: str, body: dict[str, Any], timeout: float) -> Any:
        return self._ask(path, json.dumps(body).encode(), timeout)

    def _ask(self, path: str, data: bytes | None, timeout: float) -> Any:
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with self._opener.open(request, timeout=timeout) as response:
                reply = response.read(LARGEST + 1)
        except urllib.error.HTTPError as exc:
            raise _with_reason(exc) from None
        if len(reply) > LARGEST:  # another user may have the port of an observer that has ended
            raise RuntimeError(
                f"invalid telemetry query response from {self.url}: more than {LARGEST >> 20} MiB, which no telemetry sends"
            )
        try:
            return json.loads(reply)
        except (ValueError, RecursionError):
            raise RuntimeError(
                f"invalid telemetry query response from {self.url}: no JSON in {reply[:200]!r}"
            ) from None

    def __repr__(self) -> str:
        return f"QueryEngineClient({self.url!r})"


def _with_reason(exc: urllib.error.HTTPError) -> urllib.error.HTTPError:
    """The error with what the server says instead of the status's name."""
    with exc:
        body = exc.read(1 << 20)
    try:
        text = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        text = exc.reason
    return _error(exc.url, exc.code, str(text), exc.headers)


def _error(url: str, status: int, reason: str, headers: Message) -> urllib.error.HTTPError:
    """Returns an error without a body, closed: Python 3.14 warns of one that is not."""
    error = urllib.error.HTTPError(url, status, reason, headers, io.BytesIO())
    error.close()
    return error
