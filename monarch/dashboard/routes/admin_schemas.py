"""The shapes of the admin API as JSON Schema, and the API as OpenAPI 3.1. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from monarch.admin.payloads import AdminInfo, ApiErrorEnvelope, ConfigEntry, NodePayload, Nodes

_ID = "https://monarch.meta.com/schemas/v1/"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES: dict[str, tuple[str, Any]] = {
    "node_payload": ("node_payload", NodePayload),
    "node": ("node_payload", NodePayload),
    "admin": ("admin_info", AdminInfo),
    "error": ("error", ApiErrorEnvelope),
}


def schema(name: str) -> dict[str, Any] | None:
    """JSON Schema of node_payload, admin or error; None for another name."""
    known = _TYPES.get(name)
    if known is None:
        return None
    return {"$schema": _DIALECT, "$id": _ID + known[0], **msgspec.json.schema(known[1])}


_JSON, _TEXT, _SVG, _MARKDOWN = "application/json", "text/plain", "image/svg+xml", "text/markdown"
_REFERENCE = "a reference, percent-encoded whole"

# (method, path, what it is, type of the answer, its schema)
_PATHS: tuple[tuple[str, str, str, str, str], ...] = (
    ("get", "/v1/root", "The root of the tree", _JSON, "NodePayload"),
    ("get", "/v1/{reference}", "One node", _JSON, "NodePayload"),
    ("get", "/v1/nodes", "Every node, parents first", _JSON, "Nodes"),
    ("get", "/v1/tree", "The tree as text, with a URL for each node", _TEXT, ""),
    ("get", "/v1/doctor", "What is wrong with the program, ten seconds old at most", _JSON, ""),
    ("get", "/v1/tables", "What parts of the program tell of themselves, such as its services", _JSON, ""),
    ("get", "/v1/metrics", "The curves of what the program logs of itself", _JSON, ""),
    ("get", "/v1/admin", "Which server this is", _JSON, "AdminInfo"),
    ("get", "/v1/schema", "JSON Schema of a node", _JSON, ""),
    ("get", "/v1/schema/admin", "JSON Schema of /v1/admin", _JSON, ""),
    ("get", "/v1/schema/error", "JSON Schema of errors", _JSON, ""),
    ("get", "/v1/config/{reference}", "The settings of a process", _JSON, "Settings"),
    ("get", "/v1/pyspy/{reference}", "The stacks of a process", _JSON, ""),
    ("get", "/v1/output/{reference}", "The last lines that a process has written", _JSON, ""),
    ("post", "/v1/pyspy_dump/{reference}", "Stores the stacks of a process with the telemetry", _JSON, ""),
    ("post", "/v1/pyspy_profile_svg/{reference}", "A flame graph of a process", _SVG, ""),
    ("post", "/v1/query", "SQL over the telemetry", _JSON, ""),
    ("get", "/SKILL.md", "A guide to this API", _MARKDOWN, ""),
)


def openapi() -> dict[str, Any]:
    types = {"NodePayload": NodePayload, "Nodes": Nodes, "AdminInfo": AdminInfo, "ApiErrorEnvelope": ApiErrorEnvelope}
    _, components = msgspec.json.schema_components(
        [*types.values(), ConfigEntry], ref_template="#/components/schemas/{name}"
    )
    components["Settings"] = {"type": "array", "items": {"$ref": "#/components/schemas/ConfigEntry"}}
    paths: dict[str, dict[str, Any]] = {}
    for method, path, summary, media, name in _PATHS:
        paths.setdefault(path, {})[method] = _operation(path, summary, media, name)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Monarch Mesh Admin API", "version": "v1"},
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(path: str, summary: str, media: str, name: str) -> dict[str, Any]:
    content = {media: {"schema": {"$ref": f"#/components/schemas/{name}"} if name else {}}}
    error = {_JSON: {"schema": {"$ref": "#/components/schemas/ApiErrorEnvelope"}}}
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": summary, "content": content},
            "default": {"description": "What went wrong", "content": error},
        },
    }
    if "{reference}" in path:
        operation["parameters"] = [
            {
                "name": "reference",
                "in": "path",
                "required": True,
                "description": _REFERENCE,
                "schema": {"type": "string"},
            }
        ]
    return operation
