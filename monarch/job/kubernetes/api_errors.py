"""Errors that the API server, or a proxy in front of it, tells, as a sentence with what to do. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

_HANDSHAKE = re.compile(r"Handshake status (\d+) ([^-]*)")

_HINTS = {
    401: "The credentials are expired or revoked: sign in to the cluster again, or name another kubeconfig",
    403: "Ask for these permissions (examples/kubernetes/rbac.yaml has all that a job needs), or use another namespace",
    404: "Check the namespace, and that this is the cluster you mean",
    429: "The API server is overloaded; try again later",
}
_QUOTA = "Ask for less, or have the namespace's quota raised (kubectl describe resourcequota)"


def api_words(status: int | None, reason: str | None, body: str | bytes | None) -> str:
    """Returns what the API said: the message of its Status object, else the body, else the reason of the HTTP status."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
    try:
        found: Any = json.loads(text)
        message = found.get("message") if isinstance(found, dict) else None
    except ValueError:
        message = None
    words = " ".join(str(message or text or reason or "no reason given").split())
    return words if len(words) <= 500 else words[:500] + " ..."


def refusal(doing: str, where: str, status: int | None, reason: str | None, body: str | bytes | None) -> str:
    """`doing`: "create StatefulSet trainers in namespace research"; `where`: what the requests go to."""
    words = api_words(status, reason, body)
    line = f"cannot {doing}: {where} answered {status} {reason or ''}".rstrip() + f": {words}"
    hint = _QUOTA if status == 403 and "quota" in words else _HINTS.get(status or 0, "")
    return f"{line}. {hint}" if hint else line


def unreachable(doing: str, where: str, why: BaseException) -> str:
    words = " ".join(str(why).split()) or type(why).__name__
    return (
        f"cannot {doing}: {where} cannot be reached: {words}. "
        "Check the network (a VPN, a proxy) and the server in the kubeconfig"
    )


def forward_refused(doing: str, where: str, words: str) -> str:
    """`words`: of the WebSocket, which on refusal are "Handshake status 403 Forbidden -+-+- headers -+-+- body"."""
    match = _HANDSHAKE.match(words)
    if match is None:
        return unreachable(doing, where, ConnectionError(words))
    return refusal(doing, where, int(match[1]), match[2].strip(), words.rpartition("-+-+-")[2].strip())
