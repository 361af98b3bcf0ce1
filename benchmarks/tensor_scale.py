"""What does an operation on distributed tensors cost on meshes of 1 to 64 processes?

python benchmarks/tensor_scale.py --plot docs/tensor_scale.svg
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _harness import main
from _question import Measure, Question, Run
from _stats import MICROSECONDS

SIZES = (1, 2, 4, 8, 16, 32, 64)
SCRIPTS = {"ours": "monarch_tensors.py"}


def run(procs: int) -> Run:
    return Run(
        "chains",
        (
            Measure(f"x + y, issue, {procs} procs", "issue", MICROSECONDS),
            Measure(f"x + y, complete, {procs} procs", "complete", MICROSECONDS),
        ),
        {"procs": procs, "length": 500, "warmup": 2, "count": 6},
        {"length": 200, "count": 3},
        contenders=("ours",),
        scripts=SCRIPTS,
        needs_torch=True,
        timeout_s=240,
    )


QUESTION = Question(
    "tensor_scale",
    "What does an operation on distributed tensors cost on larger meshes?",
    tuple(run(procs) for procs in SIZES),
    rounds=1,
)


def plot(record: Mapping[str, Any], path: Path) -> None:
    """Issue and completion against the number of processes, both axes logarithmic."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tensor_scale"
    from matplotlib import pyplot

    figures: dict[str, list[tuple[int, float]]] = {"issue": [], "complete": []}
    for measure in record["measures"]:
        found = measure["contenders"].get("ours")
        if found:
            _, kind, procs = (part.strip() for part in measure["measure"].split(","))
            figures[kind].append((int(procs.split()[0]), found["p50"] * 1e6))
    figure, axes = pyplot.subplots(figsize=(6, 3.6))
    for kind, points in figures.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=kind)
    axes.set(xscale="log", yscale="log", xlabel="processes", ylabel="µs an operation")
    axes.set_xticks(SIZES, [str(size) for size in SIZES])
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main(QUESTION, draw=plot))
