"""Texts of the overlays: diagnostics, stacks, settings, the glossary. Pure: lines of (text, tone)."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, NamedTuple

from monarch._mesh.inspection.diagnosis import Finding
from monarch._mesh.inspection.status_tables import StatusTable
from monarch._mesh.output.kept import OutputPage
from monarch.admin.payloads import ConfigEntry, CurvesFound
from monarch.admin.screen import glossary
from monarch.admin.screen.diagnostics import ADMIN, MESH, Check, CheckReport
from monarch.admin.screen.words import Words
from monarch.metrics import metric_plot

_VALUE, _SOURCE = 32, 14  # columns
_STDERR = 2
_CURVE, _ROWS = 40, 6  # columns of a curve at least, and its rows


class PageText(NamedTuple):
    text: str
    tone: str = ""


def diagnostics(report: CheckReport, done: bool, say: Words) -> tuple[str, list[PageText]]:
    """Returns (title, lines)."""
    title = say("Diagnostics")
    if done:
        title += f": {_verdict(report, say)}"
    else:
        title += f": {len(report.checks)} ..."
    lines = findings(report.findings)
    for phase in (ADMIN, MESH):
        checks = [check for check in report.checks if check.phase == phase]
        if checks:
            lines.append(PageText(phase, "accent"))
            lines += [line for check in checks for line in _check(check)]
    return title, lines


def findings(found: Sequence[Finding]) -> list[PageText]:
    """Returns the doctor's as lines, the likeliest cause first."""
    lines = []
    for finding in found:
        lines.append(PageText(finding.title, "error"))
        lines += [PageText(f"  {line}", "dim") for line in finding.evidence]
        lines += [PageText(f"  -> {finding.advice}", "warning"), PageText("")]
    return lines


def _verdict(report: CheckReport, say: Words) -> str:
    if report.timed_out:
        return "out of time"
    if report.findings:
        return say("{0} wrong", len(report.findings))
    if report.healthy:
        return f"{say('all passed')} ({report.total()})"
    return ", ".join(f"{phase} {_word(report, phase, say)}" for phase in (ADMIN, MESH))


def _word(report: CheckReport, phase: str, say: Words) -> str:
    total, passed = report.total(phase), report.passed(phase)
    if not total:
        return say("n/a")
    return say("healthy") if passed == total else f"{say('failing')} ({total - passed} / {total})"


def _check(check: Check) -> list[PageText]:
    tone = {"Pass": "good", "Slow": "warning", "Fail": "error"}[check.word]
    note = f"  {check.note}" if check.note else ""
    lines = [PageText(f"  {check.word}  {check.seconds * 1000:>6.0f} ms  {check.label}{note}", tone)]
    if check.error is not None:
        lines += [PageText(f"                   {line}", "error") for line in check.error.splitlines()]
    return lines


def stacks(captured: dict[str, Any], at: str) -> list[PageText]:
    """`captured`: as /v1/pyspy answers; `at`: when."""
    if "Ok" not in captured:
        kind, what = next(iter(captured.items()), ("no answer", ""))
        return [PageText(f"{kind}: {what}", "error")]
    found = captured["Ok"]
    lines = [PageText(f"pid {found['pid']}  by {found['binary']}  {found.get('capture_mode', '')}  {at}", "dim")]
    lines += [PageText(warning, "warning") for warning in found["warnings"]]
    for trace in found["stack_traces"]:
        lines.append(PageText(""))
        active = "" if trace["active"] else "  (waits)"
        lines.append(PageText(f"{trace['thread_name'] or 'thread'}  {trace['os_thread_id'] or ''}{active}", "accent"))
        for frame in trace["frames"]:
            lines.append(PageText(f"  {frame['name']}  {frame['filename']}:{frame['line']}"))
            for local in frame["locals"] or ():
                lines.append(PageText(f"      {local['name']} = {local['repr']}", "dim"))
        if not trace["frames"]:
            lines.append(PageText("  (only the runtime)", "dim"))
    return lines


def output(found: Sequence[OutputPage]) -> list[PageText]:
    """Returns the last lines that a process has written, the newest last; those of an earlier start before them."""
    lines = []
    for one in found:
        if not one.whole:
            lines.append(PageText("(its stderr: stdout goes straight to the program's terminal)", "dim"))
        for line in one.lines:
            at = datetime.datetime.fromtimestamp(line.at).strftime("%H:%M:%S")
            lines.append(PageText(f"{at}  {line.text}", "warning" if line.stream == _STDERR else ""))
    return lines or [PageText("nothing that its host keeps: `monarch logs` says where output goes", "dim")]


def tables(found: Sequence[StatusTable]) -> list[PageText]:
    """Returns what parts of the program tell of themselves."""
    lines = []
    for table in found:
        title, *rows = table.lines()
        lines += [
            PageText(title, "accent"),
            *(PageText(f"  {row}", "" if place else "dim") for place, row in enumerate(rows)),
        ]
        lines.append(PageText(""))
    return lines or [PageText("no service runs in this program", "dim")]


def metrics(found: CurvesFound, width: int) -> list[PageText]:
    """Returns the curves of what the program logs, as `monarch metrics` draws them."""
    if not found.curves:
        return [PageText(metric_plot.nothing_logged(), "dim")]
    lines = []
    for curve in found.curves:
        lines.append(PageText(f"{curve.mesh} · {curve.name}  {metric_plot.sentence(curve)}", "accent"))
        drawn = metric_plot.plot([metric_plot.PlottedLine(curve.steps, curve.mean)], max(_CURVE, width), _ROWS)
        lines += [*map(PageText, drawn), PageText("")]
    if found.left_out:
        lines.append(PageText(f"{found.left_out:,} values are of further curves, which are too many", "dim"))
    return lines


def config(entries: Sequence[ConfigEntry], width: int) -> list[PageText]:
    """Changed ones are marked. Environment variables are shown where the page is wide enough."""
    name = max((len(entry.name) for entry in entries), default=0)
    value = max((len(entry.value) for entry in entries), default=0)
    value = max(6, min(value, _VALUE, width - name - 6 - _SOURCE))
    room = width - (name + value + 6 + _SOURCE)
    lines = []
    for entry in entries:
        mark = "*" if entry.changed_from_default else " "
        tone = "warning" if entry.changed_from_default else "" if entry.has_effect else "dim"
        variable = entry.env_var or ""
        given = entry.value if len(entry.value) <= value else entry.value[: value - 1] + "…"
        shown = f"{mark} {entry.name:<{name}}  {given:<{value}}  {entry.source:<{_SOURCE}}"
        lines.append(PageText((f"{shown}  {variable}" if 0 < len(variable) + 2 <= room else shown).rstrip(), tone))
    return lines


def help_page(language: str) -> list[PageText]:
    keys = glossary.keys()
    width = max(len(key) for key, _ in keys)
    lines = [PageText(f"{key:<{width}}  {what}") for key, what in keys]
    lines.append(PageText(""))
    names = glossary.entries(language)
    width = max(len(name) for name, _ in names)
    return lines + [PageText(f"{name:<{width}}  {meaning}") for name, meaning in names]
