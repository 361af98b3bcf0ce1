"""What the overlays say: diagnostics, stacks, settings, the glossary. Pure: lines of (text, tone)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from monarch.admin.payloads import ConfigEntry
from monarch.admin.screen import glossary
from monarch.admin.screen.diagnostics import ADMIN, MESH, Check, Report
from monarch.admin.screen.words import Words

_VALUE, _SOURCE = 32, 14  # columns


class Text(NamedTuple):
    text: str
    tone: str = ""


def diagnostics(report: Report, done: bool, say: Words) -> tuple[str, list[Text]]:
    """(title, lines)."""
    title = say("Diagnostics")
    if done:
        title += f": {_verdict(report, say)}"
    else:
        title += f": {len(report.checks)} ..."
    lines = []
    for phase in (ADMIN, MESH):
        checks = [check for check in report.checks if check.phase == phase]
        if checks:
            lines.append(Text(phase, "accent"))
            lines += [line for check in checks for line in _check(check)]
    return title, lines


def _verdict(report: Report, say: Words) -> str:
    if report.timed_out:
        return "out of time"
    if report.healthy:
        return f"{say('all passed')} ({report.total()})"
    return ", ".join(f"{phase} {_word(report, phase, say)}" for phase in (ADMIN, MESH))


def _word(report: Report, phase: str, say: Words) -> str:
    total, passed = report.total(phase), report.passed(phase)
    if not total:
        return say("n/a")
    return say("healthy") if passed == total else f"{say('failing')} ({total - passed} / {total})"


def _check(check: Check) -> list[Text]:
    tone = {"Pass": "good", "Slow": "warning", "Fail": "error"}[check.word]
    note = f"  {check.note}" if check.note else ""
    lines = [Text(f"  {check.word}  {check.seconds * 1000:>6.0f} ms  {check.label}{note}", tone)]
    if check.error is not None:
        lines += [Text(f"                   {line}", "error") for line in check.error.splitlines()]
    return lines


def stacks(captured: dict[str, Any], at: str) -> list[Text]:
    """`captured`: as /v1/pyspy answers; `at`: when."""
    if "Ok" not in captured:
        kind, what = next(iter(captured.items()), ("no answer", ""))
        return [Text(f"{kind}: {what}", "error")]
    found = captured["Ok"]
    lines = [Text(f"pid {found['pid']}  by {found['binary']}  {found.get('capture_mode', '')}  {at}", "dim")]
    lines += [Text(warning, "warning") for warning in found["warnings"]]
    for trace in found["stack_traces"]:
        lines.append(Text(""))
        active = "" if trace["active"] else "  (waits)"
        lines.append(Text(f"{trace['thread_name'] or 'thread'}  {trace['os_thread_id'] or ''}{active}", "accent"))
        for frame in trace["frames"]:
            lines.append(Text(f"  {frame['name']}  {frame['filename']}:{frame['line']}"))
            for local in frame["locals"] or ():
                lines.append(Text(f"      {local['name']} = {local['repr']}", "dim"))
        if not trace["frames"]:
            lines.append(Text("  (only the runtime)", "dim"))
    return lines


def config(entries: Sequence[ConfigEntry], width: int) -> list[Text]:
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
        lines.append(Text((f"{shown}  {variable}" if 0 < len(variable) + 2 <= room else shown).rstrip(), tone))
    return lines


def help_page(language: str) -> list[Text]:
    keys = glossary.keys()
    width = max(len(key) for key, _ in keys)
    lines = [Text(f"{key:<{width}}  {what}") for key, what in keys]
    lines.append(Text(""))
    names = glossary.entries(language)
    width = max(len(name) for name, _ in names)
    return lines + [Text(f"{name:<{width}}  {meaning}") for name, meaning in names]
