"""How long is a call, by percentile? One caller and eight, on an idle machine and on one whose other cores are busy.

python benchmarks/latency.py [--quick] [--contenders floor,ours] [--plot docs/latency.svg]
python benchmarks/latency.py --from out/latency.jsonl --plot docs/latency.svg    # draws the last run again
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _contender import BENCHMARKS
from _harness import main
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
    return f"{who}, {client}, {style} endpoint{', busy cores' if busy else ''}"


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
        {"callers": CALLERS, "busy": busy, "pinned": True, "warmup_s": 0.15, "count_s": 0.5},
        {"warmup_s": 0.1, "count_s": 0.2},
        contenders=tuple(SCRIPTS),
        scripts=SCRIPTS,
    )


QUESTION = Question("latency", "How long is a call, by percentile?", (run(busy=False), run(busy=True)))


def plot(record: Mapping[str, Any], path: Path) -> None:
    """Percentiles of each contender: plain client and endpoint; a panel for each number of callers and each machine."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {
        "svg.hashsalt": "latency",
        "svg.fonttype": "none",
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    from matplotlib import pyplot

    measures = {measure["measure"]: measure["contenders"] for measure in record["measures"]}
    percentiles = {"50": "p50", "90": "p90", "99": "p99", "99.9": "p999"}
    figure, panels = pyplot.subplots(2, 2, figsize=(7.2, 5.0), sharex=True, sharey=True, layout="constrained")
    for row, busy in enumerate((False, True)):
        for column, callers in enumerate(CALLERS):
            axes = panels[row][column]
            found = measures.get(name(callers, "sync", "sync", busy), {})
            for contender, figures in found.items():
                style = {"color": f"C{list(SCRIPTS).index(contender)}"}
                if contender in ("socket", "floor"):
                    style["linestyle"] = "--"
                if contender == "ours":
                    style |= {"linewidth": "2.2", "zorder": "3"}
                axes.plot(
                    list(percentiles),
                    [figures[key] * 1e6 for key in percentiles.values()],
                    marker="o",
                    markersize=3,
                    label=contender,
                    **{key: float(value) if key in ("linewidth", "zorder") else value for key, value in style.items()},
                )
            who = "1 caller" if callers == 1 else f"{callers} callers"
            axes.set(yscale="log", title=f"{who}, {'all other cores busy' if busy else 'idle machine'}")
            axes.grid(True, which="major", lw=0.3, alpha=0.6)
            if row == 1:
                axes.set_xlabel("percentile of calls")
            if column == 0:
                axes.set_ylabel("µs a call")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(path, metadata={"Date": None})


def command() -> int:
    """As `_harness.main`, and draws."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--from", type=Path, dest="earlier")
    mine, others = parser.parse_known_args()
    status = main(QUESTION, others) if mine.earlier is None else 0
    if mine.plot is not None and not status:
        lines = (mine.earlier or BENCHMARKS / "out" / f"{QUESTION.name}.jsonl").read_text().splitlines()
        plot(json.loads(lines[-1]), mine.plot)
    return status


if __name__ == "__main__":
    sys.exit(command())
