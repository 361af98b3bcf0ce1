"""Draws a curve of docs/training from what a program recorded: reads NAME.json beside this file and writes NAME.svg.

    .venv/bin/python docs/training/curves/plot.py grpo-actors grpo-streaming

A record is an object with

- `x`: the title of the x axis; `title`, which may be left out;
- `panels`: one plot above the other, each with `y` (the title of its axis) and `series`, a list of objects with `label`, `x`
  and `y` (two lists of numbers). A panel may have `scale` ("log"), `range` (two numbers), and each series `style` ("line",
  "points", "steps") and `thin` (true: behind the others). With one panel its `y` and `series` may stand in the record itself;
- `events`: marked moments, objects with `x` and `label`; events of one label share a colour and an entry of the legend.

The same record gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
COLOURS = ("#1f5fa8", "#c4461f", "#2e8540", "#7a4fa3", "#8a6d00", "#5b6770")
EVENTS = ("#555555", "#b00020", "#00788a")


def main() -> None:
    parser = argparse.ArgumentParser(description="Draws NAME.json of this folder as NAME.svg.")
    parser.add_argument("names", nargs="+", metavar="NAME", help="a record, with or without .json")
    for name in parser.parse_args().names:
        source = HERE / f"{name.removesuffix('.json')}.json"
        if not source.exists():
            known = ", ".join(sorted(path.stem for path in HERE.glob("*.json"))) or "none"
            parser.error(f"there is no record {source.name} in {HERE}; there are: {known}")
        target = source.with_suffix(".svg")
        draw(json.loads(source.read_text()), target)
        print(f"drawn: {target.name}")


def draw(record: dict[str, Any], target: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {
        "svg.hashsalt": target.stem,
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "savefig.facecolor": "white",  # readable on a dark page too
    }
    from matplotlib import pyplot

    panels = record.get("panels") or [{key: record[key] for key in ("y", "series", "scale", "range") if key in record}]
    heights = [2.9] + [1.5] * (len(panels) - 1)
    figure, grid = pyplot.subplots(
        len(panels),
        1,
        figsize=(7.2, sum(heights) + 0.5),
        sharex=True,
        squeeze=False,
        height_ratios=heights,
        layout="constrained",
    )
    colours: dict[str, str] = {}  # the same label has the same colour in every panel
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        for series in panel["series"]:
            colour = colours.setdefault(series["label"], COLOURS[len(colours) % len(COLOURS)])
            draw_series(axes, series, colour)
        axes.set_ylabel(panel["y"])
        axes.set_yscale(panel.get("scale", "linear"))
        if "range" in panel:
            axes.set_ylim(*panel["range"])
        axes.grid(True, which="major", linewidth=0.3, alpha=0.6)
        mark(axes, record.get("events", []))
    if "title" in record:
        grid[0, 0].set_title(record["title"], fontsize=10)
    grid[-1, 0].set_xlabel(record["x"])
    legend: dict[str, Any] = {}
    for axes in grid[:, 0]:
        legend |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(
        list(legend.values()), list(legend), loc="outside lower center", ncols=min(3, len(legend)), frameon=False
    )
    figure.savefig(target, metadata={"Date": None})
    pyplot.close(figure)


def draw_series(axes: Any, series: dict[str, Any], colour: str) -> None:
    style, thin = series.get("style", "line"), series.get("thin", False)
    looks = {"color": colour, "alpha": 0.35 if thin else 1.0, "zorder": 1 if thin else 2, "label": series["label"]}
    if style == "points":
        axes.scatter(series["x"], series["y"], s=6, linewidths=0, **looks)
        return
    step = {"drawstyle": "steps-post"} if style == "steps" else {}
    axes.plot(series["x"], series["y"], linewidth=0.8 if thin else 1.6, **step, **looks)


def mark(axes: Any, events: list[dict[str, Any]]) -> None:
    labels = list(dict.fromkeys(event["label"] for event in events))
    seen = set()
    for event in events:
        label = event["label"]
        colour = EVENTS[labels.index(label) % len(EVENTS)]
        axes.axvline(
            event["x"], color=colour, linewidth=0.9, linestyle=":", label=None if label in seen else label, zorder=0
        )
        seen.add(label)


if __name__ == "__main__":
    main()
