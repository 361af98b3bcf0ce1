"""How all pictures of docs look."""

from __future__ import annotations

from typing import Any


def pyplot_for(name: str) -> Any:
    """Returns matplotlib's pyplot, set for the picture of that name: the same data give the same file."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    from matplotlib import pyplot

    return pyplot
