"""`QueryEngine`: SQL whose results are Arrow tables."""

from __future__ import annotations

from typing import Any

from monarch.telemetry.client import QueryEngineClient

__all__ = ["QueryEngine", "QueryEngineClient"]


class QueryEngine:
    """`source`: what `monarch.telemetry.start()` or a JobState gives: Telemetry, a QueryEngineClient, or its URL."""

    def __init__(self, source: Any) -> None:
        client = getattr(source, "client", source)
        self._client = client if isinstance(client, QueryEngineClient) else QueryEngineClient(str(client))

    def query(self, sql: str) -> Any:
        """Returns a `pyarrow.Table`. Raises what `QueryEngineClient.query` does."""
        import pyarrow

        reply = self._client.query(sql)
        names = reply.get("columns") or list(reply["rows"][0] if reply["rows"] else ())
        return pyarrow.table({name: _column([row[name] for row in reply["rows"]]) for name in names})

    def query_stream(self, sql: str) -> Any:
        """Returns the same as a `pyarrow.RecordBatchReader`."""
        return self.query(sql).to_reader()


def _column(values: list[Any]) -> Any:
    import pyarrow

    try:
        return pyarrow.array(values)
    except OverflowError:  # ids have 64 bits, and no sign
        return pyarrow.array(values, pyarrow.uint64())
