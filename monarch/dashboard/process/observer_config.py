"""The configuration of an observer: what it is to serve, and where."""

from __future__ import annotations

import msgspec

DASHBOARD_PORT = 8265
ADMIN_PORT = 1729


class ObserverConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that an observer is to serve. Times in seconds, 0 never (`retention_secs`: for ever).

    A port that is taken is replaced by any free one, and that is noted; port 0 is any free one.
    """

    telemetry: bool = False
    retention_secs: float = 3600.0
    snapshot_interval_secs: float = 30.0
    host_metrics_interval_secs: float = 1.0
    gpu_metrics_interval_secs: float = 1.0
    include_system: bool = False
    path: str = ""  # of a file that rows are written to as well
    runs: str = ""  # the folder in which what the program logs is kept, as `run`
    run: str = ""

    dashboard: bool = False
    dashboard_host: str = "127.0.0.1"
    dashboard_port: int = DASHBOARD_PORT

    admin: bool = False
    admin_addr: str | None = None  # host:port; None: this machine only

    certificate: str = ""  # PEM files, for what is served beyond this machine
    private_key: str = ""


class Addresses(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of an observer. A URL that other machines reach has the token in it."""

    pid: int
    telemetry_url: str | None = None
    dashboard_url: str | None = None
    admin_url: str | None = None
    notes: list[str] = []  # what was not to be had, for people


def more(serving: ObserverConfig, wanted: ObserverConfig) -> ObserverConfig:
    """Returns what an observer that serves this serves from now on. The first who opens a part says how."""
    changes: dict[str, object] = {}
    for part, fields in PARTS.items():
        if getattr(wanted, part) and not getattr(serving, part):
            changes.update({name: getattr(wanted, name) for name in (part, *fields)})
    if wanted.runs:  # of one program after the other
        changes.update(runs=wanted.runs, run=wanted.run)
    if not serving.certificate:
        changes.update(certificate=wanted.certificate, private_key=wanted.private_key)
    return msgspec.structs.replace(serving, **changes)


def ignored(serving: ObserverConfig, wanted: ObserverConfig) -> list[str]:
    """Fields of parts that are wanted and served otherwise already."""
    return [
        name
        for part, fields in PARTS.items()
        if getattr(wanted, part) and getattr(serving, part)
        for name in fields
        if getattr(wanted, name) != getattr(serving, name)
    ]


PARTS = {
    "telemetry": (
        "retention_secs",
        "snapshot_interval_secs",
        "host_metrics_interval_secs",
        "gpu_metrics_interval_secs",
        "include_system",
        "path",
    ),
    "dashboard": ("dashboard_host", "dashboard_port"),
    "admin": ("admin_addr",),
}
