"""What a query gives."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Result:
    """`rows` are tuples in the order of `columns`. `missing_hosts`: those whose rows are not all here, because they cannot
    be reached or their processes recorded more than was kept. `truncated`: there are more rows than `limit`."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    missing_hosts: list[str]
    truncated: bool = False

    def dicts(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


class QueryError(ValueError):
    """The query was refused or failed; in the engine's words, or ours where it may not run."""


class QueryTimeout(QueryError, TimeoutError):
    """The query took longer than it may, or was cancelled."""
