"""Profiles of a running program as Perfetto files, Chrome traces and flame graphs.

    import monarch.trace

    with monarch.trace.profile() as profile:     # what actors called and ran meanwhile: needs telemetry
        train()
    profile.export_perfetto_trace("train.pftrace")

    flame = monarch.trace.sample(5.0)            # where Python code is, in every process: needs nothing
    flame.write("train.svg")

`monarch profile` does the same from a shell, for a program that runs already. See docs/tracing.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch.trace.flame import Flame as Flame
    from monarch.trace.profiling import Profile as Profile
    from monarch.trace.profiling import profile as profile
    from monarch.trace.sampling import sample as sample

_PLACES = {
    "Flame": "flame",
    "Profile": "profiling",
    "profile": "profiling",
    "sample": "sampling",
}

__all__ = ["Flame", "Profile", "profile", "sample"]


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(f"monarch.trace.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'monarch.trace' has no attribute {name!r}")
