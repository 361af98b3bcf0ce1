"""Draws the pictures of docs/explanations/performance.md from costs.json, which measure.py has written.

python docs/explanations/plots/draw.py      # needs matplotlib
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot, ticker

HERE = Path(__file__).resolve().parent
LOOK = {
    "svg.hashsalt": "costs",
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


def seconds(value: float, _position: object = None) -> str:
    for unit, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= unit * 0.999:
            return f"{value / unit:.3g} {name}"
    return f"{value / 1e-9:.3g} ns"


def size(value: float, _position: object = None) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.3g} B"


def save(figure: Any, name: str) -> None:
    figure.tight_layout()
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
    pyplot.close(figure)


def draw_calls(costs: dict[str, Any]) -> None:
    rows = sorted(costs["calls"], key=lambda row: row["least"], reverse=True)
    figure, axes = pyplot.subplots(figsize=(8, 2.8))
    bars = axes.barh([row["what"] for row in rows], [row["least"] for row in rows], color="tab:blue", alpha=0.8)
    axes.bar_label(bars, [seconds(row["least"]) for row in rows], padding=4)
    axes.set_xscale("log")
    axes.set_xlim(3e-6, max(row["least"] for row in rows) * 4)
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(seconds))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("time for one, the best of many runs")
    save(figure, "calls")


def draw_transfers(costs: dict[str, Any]) -> None:
    data = costs["transfers"]
    figure, axes = pyplot.subplots(figsize=(8, 4.2))
    for key, label, color, style in (
        ("message", "an argument of a call, with its answer", "tab:blue", "-"),
        ("rdma", "RDMABuffer.read_into, by the process that wants it", "tab:orange", "-"),
        ("copy", "a copy within one process", "gray", "--"),
    ):
        axes.loglog(
            data["sizes"], [row["least"] for row in data[key]], style, color=color, marker=".", label=label, base=10
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(size))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(seconds))
    axes.set_xticks(data["sizes"][::2])
    axes.minorticks_off()
    axes.set_ylabel("time, best of many runs")
    axes.set_xlabel("size of an array that goes to another process of the host")
    axes.legend(frameon=False)
    save(figure, "transfers")


def main() -> None:
    costs = json.loads((HERE / "costs.json").read_text())
    pyplot.rcParams.update(LOOK)
    draw_calls(costs)
    draw_transfers(costs)


if __name__ == "__main__":
    main()
