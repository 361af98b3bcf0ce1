"""The two lines at the top of the screen, and the one at the bottom. Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from monarch._mesh.inspection.diagnosis import Diagnosis, Finding, sentence
from monarch._text import age, counted
from monarch.admin import payloads
from monarch.admin.payloads import NodePayload
from monarch.admin.references import ROOT
from monarch.admin.screen import labels, themes
from monarch.admin.screen.ranks_page import ScreenAbout
from monarch.admin.screen.tree_state import TreeState
from monarch.admin.screen.words import Words

_WORDS = 6  # of the command line


class Options(NamedTuple):
    """The options of the command line."""

    refresh: float = 2.0  # seconds
    theme: str = themes.DEFAULT
    language: str = "en"
    tree: bool = False  # begins with the tree, not with the ranks


def about(
    name: str, root: NodePayload | None, now: float, error: str, found: Diagnosis | None, say: Words
) -> ScreenAbout:
    """Returns what stands above the ranks. `found`: None until the doctor has looked."""
    known = root.properties.Root if root is not None else None
    parts = ["monarch", name]
    if known is not None:
        parts.append(f"{say('up')} {age(max(0.0, now - payloads.seconds(known.started_at)))}")
        parts.append(f"{counted(known.num_hosts, 'host')}, {counted(known.num_procs, 'process')}")
        parts.append(" ".join(os.path.basename(word) for word in known.command.split(" ")[:_WORDS]))
    said = "" if found is None else sentence(found)
    findings = [] if found is None else found.findings
    return ScreenAbout(
        "  ".join(part for part in parts if part), said, bool(findings), error, max(0, len(findings) - 1)
    )


def first(name: str, state: TreeState, options: Options, now: float, say: Words) -> str:
    """Says what is looked at, since when it runs, whose it is, what is shown."""
    node = state.nodes.get(ROOT)
    root = node.properties.Root if node is not None else None
    parts = ["mesh-admin", name]
    if root is not None:
        parts.append(f"{say('up')}: {age(max(0.0, now - payloads.seconds(root.started_at)))}")
        parts.append(f"@{root.started_by}")
    parts.append(f"{say('sys')}:{say('on') if state.system else say('off')}")
    parts.append(f"{say('stopped')}:{say('on') if state.stopped else say('off')}")
    parts.append(f"⟳ {options.refresh:g}s")
    if options.theme != themes.DEFAULT:
        parts.append(options.theme)
    if options.language != "en":
        parts.append(options.language)
    if root is not None and root.silent:
        parts.append(f"{len(root.silent)} {say('Silent')}")
    return " • ".join(parts)


def wrong(error: str, findings: Sequence[Finding], say: Words) -> str:
    """Says why nothing comes; else what the doctor has found, the likeliest cause first."""
    if error or not findings:
        return f"ERROR: {error}"
    more = f" ({say('and {0} more', len(findings) - 1)}: d)" if len(findings) > 1 else ""
    return findings[0].title + more


def second(state: TreeState, say: Words) -> str:
    """Describes the selected node."""
    node = state.nodes.get(state.selected)
    if node is None:
        return ""
    return f"▸ {node.kind.lower()} {labels.label(node)} [{say(state.kind(state.selected))}]"


def keys(say: Words) -> list[tuple[str, str]]:
    """(key, what it does), the most used first: those that fit are shown."""
    return [
        ("?", say("help")),
        ("q", say("quit")),
        ("Tab", say("expand")),
        ("/", say("filter")),
        ("Enter", say("root cause")),
        ("t", say("ranks")),
        ("p", say("stacks")),
        ("l", say("logs")),
        ("C", say("settings")),
        ("d", say("diagnostics")),
        ("m", say("metrics")),
        ("b", say("debug")),
        ("s", say("system")),
        ("h", say("stopped")),
    ]
