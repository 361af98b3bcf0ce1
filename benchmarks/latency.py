"""How long is a call, by percentile? One caller and eight, on an idle machine and on one whose other cores are busy.

python benchmarks/latency.py [--quick] [--contenders floor,ours] [--plot docs/latency.svg]
python benchmarks/latency.py --from out/latency.jsonl --plot docs/latency.svg    # draws the last run again
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _harness import main
from _pictures import pyplot_for
from _question import CALL_COLUMNS, Measure, Question, Run
from _stats import MICROSECONDS, Aim

SCRIPTS = {
    "socket": "latency_floor.py",
    "floor": "latency_floor.py",
    "ours": "monarch_latency.py",
    "torchmonarch": "monarch_latency.py",
    "ray": "ray_latency.py",
    "ray-graph": "ray_latency.py",
}
CALLERS = (1, 8)
AIMS = (Aim(1.2, "floor"), Aim(7.0, "torchmonarch"), Aim(1 / 1.2, "ray-graph"), Aim(3.0, "p50", "p99"))


def name(callers: int, client: str, style: str, busy: bool) -> str:
    who = "1 caller" if callers == 1 else f"{callers} callers"
    return f"{who}, {client}, {style} endpoint{', busy' if busy else ''}"


def measure(callers: int, client: str, style: str, busy: bool) -> Measure:
    aims = AIMS if callers == 1 and not busy else ()
    if style == "async":
        aims = tuple(aim for aim in aims if aim.against != "ray-graph")  # it has none
    key = f"{callers} {client} {style}"
    return Measure(name(callers, client, style, busy), key, MICROSECONDS, aims, tail=True, columns=CALL_COLUMNS)


def run(busy: bool) -> Run:
    """All of a contender's shapes in one process, one after another."""
    return Run(
        "latency",
        tuple(
            measure(callers, client, style, busy)
            for callers in CALLERS
            for client in ("sync", "asyncio")
            for style in ("sync", "async")
        ),
        {"callers": CALLERS, "busy": busy, "pinned": True, "warmup_s": 0.1, "count_s": 0.45},
        {"warmup_s": 0.05, "count_s": 0.15},
        contenders=tuple(SCRIPTS),
        scripts=SCRIPTS,
    )


QUESTION = Question("latency", "How long is a call, by percentile?", (run(busy=False), run(busy=True)))


# Floors are dashed and grey; ours is the strongest line.
LINES: Mapping[str, Mapping[str, Any]] = {
    "socket": {"color": "0.7", "linestyle": "--"},
    "floor": {"color": "0.4", "linestyle": "--"},
    "ours": {"color": "tab:blue", "linewidth": 2.4, "zorder": 3},
    "base": {"color": "tab:blue"},
    "torchmonarch": {"color": "tab:orange"},
    "ray": {"color": "tab:green"},
    "ray-graph": {"color": "tab:green", "linestyle": ":"},
}


def plot(record: Mapping[str, Any], path: Path) -> None:
    """Percentiles of each contender: plain client and endpoint; a panel for each number of callers and each machine."""
    from matplotlib.ticker import EngFormatter

    pyplot = pyplot_for("latency")

    measures = {measure["measure"]: measure["contenders"] for measure in record["measures"]}
    percentiles = {"50": "p50", "90": "p90", "99": "p99", "99.9": "p999"}
    figure, panels = pyplot.subplots(2, 2, figsize=(7.2, 5.0), sharex=True, sharey=True, layout="constrained")
    for row, busy in zip(panels, (False, True), strict=True):
        for axes, callers in zip(row, CALLERS, strict=True):
            for contender, figures in measures.get(name(callers, "sync", "sync", busy), {}).items():
                seconds = [figures[key] for key in percentiles.values()]
                axes.plot(list(percentiles), seconds, marker="o", markersize=3, label=contender, **LINES[contender])
            who = "1 caller" if callers == 1 else f"{callers} callers"
            axes.set(yscale="log", title=f"{who}, {'all other cores busy' if busy else 'idle machine'}")
            axes.grid(True, which="major", lw=0.3, alpha=0.6)
            axes.yaxis.set_major_formatter(EngFormatter("s"))
            axes.label_outer()
    panels[0][0].set_ylabel("a call")
    panels[1][0].set(xlabel="percentile of calls", ylabel="a call")
    panels[1][1].set_xlabel("percentile of calls")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    sys.exit(main(QUESTION, draw=plot))
