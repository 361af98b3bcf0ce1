"""Lets a process write a trace of itself when its environment asks for that (see `monarch.trace.local_sink`)."""

from __future__ import annotations

import os

from monarch._mesh import plugins
from monarch._runtime.proc import Proc

MODE = "PERFETTO_TRACE_MODE"
_on = False


def begin_if_asked(proc: Proc) -> None:
    global _on
    mode = os.environ.get(MODE, "")
    if mode and mode != "off":
        _on = True
        plugins.outer("trace.begin")(proc, mode)


def finish() -> None:
    """The process ends in order: what it has recorded is written first."""
    if _on:
        plugins.outer("trace.finish")()
