"""Runs examples of docs/training once more and writes what plot.py draws: fault-tolerant.json, parallel.json, resume.json.

.venv/bin/python docs/training/curves/record.py fault-tolerant parallel resume
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[2] / "examples"
STEPS = 36  # of parallel and resume


def run(name: str, *arguments: object) -> None:
    subprocess.run([sys.executable, EXAMPLES / name, *map(str, arguments)], check=True)


def fault_tolerant(folder: Path) -> dict[str, Any]:
    """Three replicas of two ranks, with and without deaths: the loss over what has been read."""
    found = {}
    for deaths, label in [(3, "three deaths"), (0, "no deaths")]:
        run("replicas.py", "--batches", 300, "--deaths", deaths, "--record", folder / "run.json")
        found[label] = json.loads((folder / "run.json").read_text())
    tokens = {label: [step["tokens"] / 1000 for step in ran["steps"]] for label, ran in found.items()}
    disturbed = found["three deaths"]
    events = [
        {
            "x": tokens["three deaths"][min(event["step"], len(disturbed["steps"]) - 1)],
            "label": {"lost": "a rank is killed", "back": "its replica is back"}[event["what"]],
        }
        for event in disturbed["events"]
    ]
    losses = {label: smooth([step["loss"] for step in ran["steps"]]) for label, ran in found.items()}
    members = {label: [step["members"] for step in ran["steps"]] for label, ran in found.items()}
    return {
        "x": "thousand characters read, each counted once",
        "panels": [
            {"y": "loss, mean of 10 steps", "series": series(tokens, losses)},
            {"y": "batches in a step", "range": [0, 3.4], "series": series(tokens, members, style="steps")},
        ],
        "events": events,
    }


def parallel(folder: Path) -> dict[str, Any]:
    """Three ways to divide the model, and one process."""
    ways = {
        "FSDP2 x tensor parallel, 2 x 2": ["--dp", 2, "--tp", 2],
        "pipeline 1F1B, 2 stages": ["--pp", 2],
        "pipeline GPipe x FSDP2, 2 x 2": ["--pp", 2, "--dp", 2, "--schedule", "GPipe"],
    }
    losses, apart = {}, {}
    for label, arguments in ways.items():
        run("parallel.py", *arguments, "--steps", STEPS, "--record", folder / "run.json")
        ran = json.loads((folder / "run.json").read_text())
        losses[label] = ran["losses"]
        apart[label] = [abs(a - b) * 1e6 for a, b in zip(ran["losses"], ran["alone"], strict=True)]
    losses["one process"] = ran["alone"]
    steps = {label: list(range(len(values))) for label, values in losses.items()}
    return {
        "x": "step",
        "panels": [
            {"y": "loss", "series": series(steps, losses)},
            {"y": "difference, millionths", "series": series(steps, apart)},
        ],
    }


def resume(folder: Path) -> dict[str, Any]:
    """Four ranks until they are killed, then two, then three; and one process that nobody stops."""
    run("resume.py", "--demo", 4, 2, 3, "--steps", STEPS, "--every", 4, "--folder", folder)
    lines = [json.loads(line) for line in (folder / "losses.jsonl").read_text().splitlines()]
    sys.path.insert(0, str(EXAMPLES))
    from char_gpt import Settings, losses_alone

    expected = losses_alone(Settings(), [range(12 * step, 12 * (step + 1)) for step in range(STEPS)])
    steps: dict[str, list[int]] = {"one process without a stop": list(range(STEPS))}
    losses, apart, events = {"one process without a stop": expected}, {}, []
    for ranks, part in groupby(lines, key=lambda line: line["ranks"]):
        mine, label = list(part), f"{ranks} ranks"
        steps[label], losses[label] = [line["step"] for line in mine], [line["loss"] for line in mine]
        apart[label] = [abs(line["loss"] - expected[line["step"]]) * 1e6 for line in mine]
        events.append({"x": mine[-1]["step"], "label": "stopped" if events else "kill -9"})
    return {
        "x": "step",
        "panels": [
            {"y": "loss", "series": series(steps, losses)},
            {"y": "difference, millionths", "series": series(steps, apart)},
        ],
        "events": events[:-1],
    }


def smooth(values: list[float], width: int = 10) -> list[float]:
    return [fmean(values[max(0, n + 1 - width) : n + 1]) for n in range(len(values))]


def series(x: dict[str, list[Any]], y: dict[str, list[Any]], **looks: object) -> list[dict[str, Any]]:
    def thin(label: str) -> dict[str, object]:
        return {"thin": True} if label.startswith(("one process", "no deaths")) else {}

    rounded = {label: [float(f"{value:.4g}") for value in values] for label, values in y.items()}
    return [{"label": label, "x": x[label], "y": rounded[label], **thin(label), **looks} for label in y]


RECORDS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "fault-tolerant": fault_tolerant,
    "parallel": parallel,
    "resume": resume,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Records what plot.py draws.")
    parser.add_argument("names", nargs="+", choices=list(RECORDS), help="which")
    for name in parser.parse_args().names:
        with tempfile.TemporaryDirectory() as folder:
            record = RECORDS[name](Path(folder))
        (HERE / f"{name}.json").write_text(json.dumps(record, separators=(",", ":")) + "\n")
        print(f"recorded: {name}.json")


if __name__ == "__main__":
    main()
