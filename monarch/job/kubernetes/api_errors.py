"""Errors that the API server, or a proxy in front of it, tells, as a sentence with what to do. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

_HANDSHAKE = re.compile(r"Handshake status (\d+) ([^-]*)")

# As the API server words it when no rule of a Role grants what is asked.
_NOT_GRANTED = re.compile(r'cannot (\S+) resource "([^"]+)" in API group "([^"]*)"')

_HINTS = {
    401: "The credentials are expired or revoked: sign in to the cluster again, or name another kubeconfig",
    403: "Ask for these permissions (examples/kubernetes/rbac.yaml has all that a job needs), or use another namespace",
    404: "Check the namespace, and that this is the cluster you mean",
    429: "The API server is overloaded; try again later",
}
_QUOTA = "Ask for less, or have the namespace's quota raised (kubectl describe resourcequota)"
_OTHERS = "An object of this name is there that is too different: delete it, or give the mesh another name"
_ELSEWHERE = (
    "It sends requests elsewhere, which are not sent on, for they carry credentials: give the kubeconfig the server's "
    "own address"
)


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
    hint = _HINTS.get(status or 0, "")
    if status == 403:
        hint = _QUOTA if "quota" in words else _missing_rule(words) or hint
    elif status == 422 and doing.startswith("change"):
        hint = _OTHERS
    elif status is not None and 300 <= status < 400:
        hint = _ELSEWHERE
    return f"{line}. {hint}" if hint else line


def _missing_rule(words: str) -> str:
    """Returns the rule of a Role that grants what was refused. "" when that is no matter of Roles."""
    found = _NOT_GRANTED.search(words)
    if found is None:
        return ""
    verb, resource, group = found.groups()
    return (
        f'Missing is the verb {verb} on {resource}; this rule in the user\'s Role grants it: - {{apiGroups: ["{group}"], '
        f"resources: [{resource}], verbs: [{verb}]}}. examples/kubernetes/rbac.yaml has all that a job needs"
    )


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
