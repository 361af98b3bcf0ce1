"""The guide that the admin server gives at /SKILL.md: for people with curl, and for programs that read text. Pure."""

# ruff: noqa: E501  (a line of a table is one line)

from __future__ import annotations

_TEXT = """\
# Looking into a running Monarch program over HTTP

This server answers questions about one running program: which hosts, processes and actors it has, what they do at this moment,
where they are stuck and why they failed. It only reads. Base URL: `{base}`

## Walk the tree

The program is a tree: root -> hosts -> procs (processes) -> actors.

    curl {base}/v1/root
    curl {base}/v1/<reference>

`children` of a node are references of further nodes. A reference is opaque text; percent-encode it whole (also `/`, `@`, `<`
and `>`) when it goes into a URL. `GET {base}/v1/tree` is the tree as text with a ready URL on each line, and
`GET {base}/v1/nodes` is every node in one answer: prefer it to walking when the program is large.

Each node is `{{identity, properties, children, parent, as_of}}`; `properties` has one key, which says the kind:

| kind | what matters |
|---|---|
| Root | `num_hosts`, `failed_count`, `silent`: processes that gave no answer, and why |
| Host | `addr`, `hostname`, `num_procs`, memory and load; `problem`: why the host's agent is silent |
| Proc | `pid`, `mesh_name`, `rank`, `state`, `failed_actor_count`, `is_poisoned`, `debug` (memory, queue depths); `system_children` and `stopped_children` say which children are the runtime's, and which have ended |
| Actor | `status` and `status_detail`, `stuck_ms` (how long its oldest endpoint has been running), `execution.active_handlers`, `waits_for`, `queue_depth`, `messages_processed`, `total_processing_time_us`, `failure_info` |
| Error | `code` and `message` in place of a process that has ended (`process_ended`), does not answer (`gateway_timeout`) or starts |

## Recipes

**It hangs.** Get `/v1/nodes`. Sort actors by `stuck_ms`. An actor with a large `stuck_ms` and entries in `waits_for` waits for
somebody else: follow `waits_for[].target` (mesh.endpoint) to the actors of that mesh. The one at the end of the chain with
`stuck_ms` and no `waits_for` holds everybody up. See where it stands:

    curl {base}/v1/pyspy/<reference of its proc>

Frames are innermost first. Compare ranks of one mesh: the one that stands elsewhere is the suspect. Ranks that are Error nodes with
`gateway_timeout` are stopped or hold the interpreter lock in native code.

**Something failed.** Actors with `failure_info`: when `is_propagated` is true, `root_cause_actor` is the reference of what failed
first; look there, not here. Error nodes with `process_ended` tell the signal or exit status and the last lines of stderr.

**What it wrote.** The last 200 lines of a process, each `[number, at, stream, text]`, also of one that has ended:

    curl {base}/v1/output/<reference of its proc>

**It is slow.** `queue_depth` shows who has more to do than it can; `total_processing_time_us / messages_processed` is the mean time
in its endpoints. A flame graph of ten seconds:

    curl {base}/v1/pyspy_profile_svg/<reference> -H 'Content-Type: application/json' -d '{{"duration_s": 10, "rate_hz": 100}}' -o flame.svg

**A process behaves differently.** Its settings and where each value comes from:

    curl {base}/v1/config/<reference>

**What happened before.** With telemetry: `curl {base}/v1/query -H 'Content-Type: application/json' -d '{{"sql": "SHOW TABLES"}}'`. An actor's own node has
`flight_recorder`, a JSON text of its last events.

## Errors

`{{"error": {{"code", "message"}}}}` with `not_found`, `bad_request`, `gateway_timeout` (the process does not answer),
`service_unavailable` (the program has ended, or too many ask at a time: then `Retry-After` says when to ask again), `proxy_error`, `profile_failed`, `internal_error`. The message says what to do.

Schemas: `{base}/v1/schema`, `{base}/v1/openapi.json`.
"""


def text(base: str) -> str:
    """`base`: the URL of the server."""
    return _TEXT.format(base=base)
