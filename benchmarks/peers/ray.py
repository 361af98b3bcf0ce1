"""Ray 2.60.0. Imported as `peers.ray`; this folder must never be on sys.path itself, or `import ray` would
find this file.
"""

from __future__ import annotations

from dataclasses import replace

from _contender import Contender
from peers._venv import peer

# No reports home, no warnings about the machine on the terminal.
ENV = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def compiled_graph() -> Contender:
    """The same, for the workloads in which calls go through a graph compiled ahead."""
    return replace(contender(), name="ray-graph", note="a static graph, compiled ahead")


def contender() -> Contender:
    """Ray in its own virtual environment, or the reason why it cannot take part."""
    return peer("ray", "ray", [["ray==2.60.0", "numpy"], ["ray", "numpy"]], "import ray", ENV)
