"""Helpers of all routes: a JSON body with a limit, work on a thread, errors as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

LARGEST_BODY = 1 << 20  # bytes
AGAIN_LATER = {"Cache-Control": "no-store", "Retry-After": "2"}  # seconds; told to who has found no place


class BadRequest(ValueError):
    """Answered with 400 and this text."""


async def on_thread(work: Callable[..., T], *arguments: Any) -> T:
    from starlette.concurrency import run_in_threadpool

    given: T = await run_in_threadpool(work, *arguments)
    return given


async def body_of(request: Any, largest: int = LARGEST_BODY) -> bytes:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > largest:
            raise BadRequest(f"a request has at most {largest:,} bytes")
    return bytes(data)


async def object_of(request: Any, largest: int = LARGEST_BODY) -> dict[str, Any]:
    """Returns the JSON object that came. BadRequest for anything else."""
    found: dict[str, Any] = decoded(await body_of(request, largest), dict[str, Any])
    return found


def decoded(data: bytes, type: Any) -> Any:
    """Returns the JSON that came. BadRequest for what is none, or something else."""
    try:
        return msgspec.json.decode(data, type=type)
    except RecursionError:
        raise BadRequest("the JSON of the body is nested too deep") from None
    except msgspec.ValidationError as exc:
        raise BadRequest(f"the body is not what is expected: {exc}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as exc:
        raise BadRequest(f"the body is no JSON: {exc}") from None


async def gone(request: Any) -> None:
    """Returns when the asker has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
    """Returns `content` as JSON; bytes are JSON already."""
    from starlette.responses import Response

    body = content if isinstance(content, bytes) else msgspec.json.encode(content, enc_hook=str)
    return Response(body, status, headers=headers, media_type="application/json")


def error(status: int, text: str) -> Any:
    return answer({"error": text}, status)
