"""Results as a table for people and a record for machines. Pure: takes results, returns text and plain
data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from _contender import Contender
from _question import Measure
from _stats import Summary, paired_ratio, summarize

Samples = Mapping[str, Mapping[int, Sequence[float]]]


@dataclass(frozen=True)
class Result:
    """All samples of one measure: by contender, by round. `problems` says why a contender has none. `beside` has the
    samples of the measure's columns, by suffix.
    """

    measure: Measure
    samples: Samples
    problems: Mapping[str, str]
    beside: Mapping[str, Samples] = field(default_factory=dict)

    def summaries(self) -> dict[str, Summary]:
        """A summary for every contender that has samples."""
        by_round = self.measure.tail
        made = {name: summarize(list(rounds.values()), by_round) for name, rounds in self.samples.items()}
        return {name: summary for name, summary in made.items() if summary is not None}

    def figures_beside(self, name: str) -> dict[str, float]:
        """By suffix of a column, the median of the contender's rounds."""
        made = {suffix: summarize(list(samples.get(name, {}).values())) for suffix, samples in self.beside.items()}
        return {suffix: summary.p50 for suffix, summary in made.items() if summary is not None}

    def times_better(self, name: str, than: str) -> float | None:
        """How many times better `name` does than `than`, median of the rounds' ratios; below 1 it does
        worse.
        """
        mine, theirs = self.samples.get(name, {}), self.samples.get(than, {})
        if self.measure.unit.higher_is_better:
            return paired_ratio(mine, theirs)
        return paired_ratio(theirs, mine)

    def cost_over_floor(self, name: str) -> float | None:
        """The contender's cost as a multiple of the floor's: 1 is the floor itself, 2 is half as good."""
        return None if name in ("floor", "socket") else self._inverse(self.times_better(name, "floor"))

    def gains(self) -> dict[str, float]:
        """Per peer, how many times better we do."""
        peers = [name for name in self.samples if name not in ("ours", "floor", "socket")]
        ratios = {peer: self.times_better("ours", peer) for peer in peers}
        return {peer: ratio for peer, ratio in ratios.items() if ratio is not None}

    def verdicts(self) -> list[dict[str, Any]]:
        """Each aim with its text and True, False or None (not measured)."""
        unit, ours = self.measure.unit, self.summaries().get("ours")
        cost, gains = self.cost_over_floor("ours"), self.gains()
        return [{"aim": aim.text(unit), "pass": aim.met(unit, ours, cost, gains)} for aim in self.measure.aims]

    @staticmethod
    def _inverse(ratio: float | None) -> float | None:
        return None if not ratio else 1.0 / ratio


def table(title: str, results: Sequence[Result], contenders: Sequence[Contender]) -> str:
    """The question's table: a block a measure, a line a contender, then the aims."""
    lines = [title, "=" * len(title)]
    for contender in contenders:
        about = _about(contender)
        if about:
            lines.append(f"  {contender.name}: {about}")
    for result in results:
        lines += ["", *_block(result)]
    return "\n".join(lines)


def _about(contender: Contender) -> str:
    if contender.skip:
        return f"skipped: {contender.skip}"
    return ", ".join(filter(None, [contender.version, contender.note]))


def _block(result: Result) -> list[str]:
    measure, unit = result.measure, result.measure.unit
    shown = _percentiles(measure)
    lines = [
        _row(f"{measure.name} [{unit.shown}]", shown, "x floor", "ours better", [c.title for c in measure.columns])
    ]
    gains = result.gains()
    for name, summary in result.summaries().items():
        cost = result.cost_over_floor(name)
        over = "" if cost is None else f"{cost:.2f}"
        better = f"{gains[name]:.1f}x" if name in gains else ""
        figures = [unit.show(getattr(summary, _FIGURES[title])) if title else "" for title in shown]
        lines.append(_row(f"  {name}", figures, over, better, _beside(result, name)))
    lines += [f"  {name:<42}{problem}" for name, problem in result.problems.items()]
    words = {True: "PASS", False: "FAIL", None: "not judged"}
    lines += [f"  aim {verdict['aim']:<38}{words[verdict['pass']]:>12}" for verdict in result.verdicts()]
    return lines


_FIGURES = {"p50": "p50", "p90": "p90", "p99": "p99", "p99.9": "p999"}  # of a Summary, by title


def _percentiles(measure: Measure) -> list[str]:
    """Titles of those that are shown: for rates the high end is no tail, and its place stays empty."""
    if measure.unit.higher_is_better:
        return ["p50", ""]
    return list(_FIGURES) if measure.tail else ["p50", "p99"]


def _row(name: str, figures: Sequence[str], over: str, better: str, beside: Sequence[str]) -> str:
    cells = [f"{name:<44}", *(f"{figure:>12}" for figure in figures), f"{over:>10}{better:>14}"]
    return "".join([*cells, *(f"{text:>12}" for text in beside)])


def _beside(result: Result, name: str) -> list[str]:
    """The text of each of the measure's columns."""
    figures = result.figures_beside(name)
    columns = result.measure.columns
    return ["+".join(column.unit.show(figures.get(suffix)) for suffix in column.suffixes) for column in columns]


def record(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The measures as plain data, figures in SI units."""
    return [
        {
            "measure": result.measure.name,
            "unit": result.measure.unit.si,
            "contenders": {
                name: {**_plain(summary), **result.figures_beside(name)} for name, summary in result.summaries().items()
            },
            "problems": dict(result.problems),
            "x_floor": {
                name: round(cost, 3) for name in result.samples if (cost := result.cost_over_floor(name)) is not None
            },
            "ours_better": {peer: round(gain, 3) for peer, gain in result.gains().items()},
            "aims": result.verdicts(),
        }
        for result in results
    ]


def _plain(summary: Summary) -> dict[str, Any]:
    short = {key: float(f"{getattr(summary, key):.6g}") for key in ("p50", "p90", "p99", "p999", "low", "high")}
    return {"n": summary.n, **short, "rounds": [float(f"{value:.6g}") for value in summary.rounds]}
