"""Names of workers, which may stand before their addresses: `name@tcp://host:port`.

A launcher may give each host of a job a name of its own, so that both sides mean the same host. Here a worker is known by its
address and its job by its secret, so names are accepted everywhere and needed nowhere.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence

SERVICE_PROC_IDS_ENV = "MONARCH_SERVICE_PROC_IDS"
SERVICE_PROC_RANK_ENV = "MONARCH_SERVICE_PROC_RANK"

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"  # base58: no two look alike
_DIGITS = 11  # 64 bits


def new_service_proc_id() -> str:
    """A random name of a worker."""
    return "service" + "".join(secrets.choice(_ALPHABET) for _ in range(_DIGITS))


def serialize_service_proc_ids(ids: Sequence[str]) -> str:
    """Names as the text of MONARCH_SERVICE_PROC_IDS. TypeError for what is not a text."""
    _check(list(ids))
    return json.dumps(list(ids))


def deserialize_service_proc_ids(text: str) -> list[str]:
    """Names from the text of MONARCH_SERVICE_PROC_IDS. ValueError when it is none."""
    try:
        ids = json.loads(text)
        _check(ids)
    except (ValueError, TypeError) as exc:
        raise ValueError(f"{SERVICE_PROC_IDS_ENV} is a JSON list of names, not {text!r}") from exc
    return ids  # type: ignore[no-any-return]


def _check(ids: object) -> None:
    if not isinstance(ids, list) or not all(isinstance(one, str) and one and "@" not in one for one in ids):
        raise TypeError(f"names of workers are non-empty texts without an @, got {ids!r}")


def service_proc_addr(url: str, service_proc_id: str | None = None) -> str:
    """The address of the worker of that name at `url`; without a name the bare `url`."""
    return url if service_proc_id is None else f"{service_proc_id}@{url}"


def service_proc_addrs(urls: Sequence[str], ids: Sequence[str]) -> list[str]:
    """The addresses of several workers, pairwise. ValueError when they are not equally many."""
    if len(urls) != len(ids):
        raise ValueError(f"got {len(urls)} worker addresses and {len(ids)} service ProcIds")
    return [service_proc_addr(url, one) for url, one in zip(urls, ids, strict=True)]


def ranked_service_proc_id_from_env(*, rank_env: str = SERVICE_PROC_RANK_ENV) -> str | None:
    """The name of this worker: that of its rank, which the variable `rank_env` says, in MONARCH_SERVICE_PROC_IDS. None when
    either is not set; ValueError for a rank that has no name."""
    text, rank = os.environ.get(SERVICE_PROC_IDS_ENV), os.environ.get(rank_env)
    if text is None or rank is None:
        return None
    ids = deserialize_service_proc_ids(text)
    if not rank.isdecimal() or int(rank) >= len(ids):
        raise ValueError(f"{rank_env}={rank} names none of the {len(ids)} workers in {SERVICE_PROC_IDS_ENV}")
    return ids[int(rank)]
