"""What a run tells of itself: a live line on the terminal, and a record that docs/training/curves/plot.py can draw."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import monarch.metrics


class Progress:
    def __init__(self, steps: int, unit: str = "step") -> None:
        self.steps, self.unit = steps, unit
        self.start = time.perf_counter()
        self.values: dict[str, tuple[list[float], list[float]]] = {}  # by label: seconds, values
        self.events: list[tuple[float, str]] = []
        self.line = ""
        self.tenths = 0  # that were shown

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.perf_counter() - self.start

    def add(self, **values: float) -> None:
        """Values of this moment, by the label that a curve will have; `_` stands for a space."""
        for name, value in values.items():
            seconds, known = self.values.setdefault(name.replace("_", " "), ([], []))
            seconds.append(self.seconds)
            known.append(round(value, 4))
            monarch.metrics.log(step=len(known) - 1, **{name: value})

    def recent(self, label: str, count: int = 10) -> float:
        """The mean of the latest values of a label."""
        latest = self.values[label][1][-count:]
        return sum(latest) / len(latest)

    def show(self, step: int, text: str) -> None:
        """The live line: on a terminal one that is written anew, elsewhere a line every tenth of the steps."""
        text = f"{self.unit} {step}/{self.steps}  {text}"
        if sys.stdout.isatty():
            self.line = text
            print(f"\r\033[K{text}", end="" if step < self.steps else "\n", flush=True)
        elif self.tenths < (tenths := step * 10 // self.steps):
            self.tenths = tenths
            print(text, flush=True)

    def note(self, text: str, mark: str = "") -> None:
        """Something worth a line of its own, and with `mark` a mark of that label in the curve."""
        if mark:
            self.events.append((round(self.seconds, 3), mark))
        if sys.stdout.isatty():
            print(f"\r\033[K  {text}\n{self.line}", end="", flush=True)
        else:
            print(f"  {text}", flush=True)

    def save(self, path: Path, panels: Mapping[str, Sequence[str]]) -> None:
        """Writes the record: a panel for each title of a y axis, with the curves of these labels."""
        record = {
            "x": "seconds",
            "panels": [
                {
                    "y": title,
                    "series": [
                        {"label": label, "x": [round(x, 3) for x in seconds], "y": values}
                        for label, (seconds, values) in ((label, self.values[label]) for label in labels)
                    ],
                }
                for title, labels in panels.items()
            ],
            "events": [{"x": seconds, "label": label} for seconds, label in self.events],
        }
        path.write_text(json.dumps(record) + "\n")
        print(f"record: {path}")
