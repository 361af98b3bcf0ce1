"""Lets a process export to OpenTelemetry when its environment asks for that (see `monarch.telemetry.otel`).

On a thread: loading the SDK takes half a second, and nothing waits for it.
"""

from __future__ import annotations

import logging
import os

from monarch._mesh import plugins
from monarch._mesh.inspection.recording import process_name
from monarch._runtime.loop import start_thread
from monarch._runtime.proc import Proc

logger = logging.getLogger("monarch")

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def begin_if_asked(proc: Proc, *, say: bool = False) -> None:
    """`say`: logs what is missing, which is the same everywhere and told by the client alone."""
    if os.environ.get(ENDPOINT):
        start_thread(_begin, "monarch-otel", proc, say)


def _begin(proc: Proc, say: bool) -> None:
    try:
        plugins.outer("telemetry.export")(process_name(proc))
    except ImportError as exc:
        if say:
            logger.warning("%s is set, and nothing is exported: %s is not installed: pip install 'pymonarch[otel]'",
                           ENDPOINT, exc.name)  # fmt: skip
    except Exception as exc:
        logger.warning("nothing is exported to OpenTelemetry: %s: %s", type(exc).__name__, exc)
