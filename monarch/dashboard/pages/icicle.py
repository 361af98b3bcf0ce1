"""Stacks of many threads folded into one tree: who is where, and who is where nobody else is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_NODES = 5_000
MOST_DEPTH = 200
FEW = 0.1  # a branch with at most this share of a mesh's ranks is one that stragglers take


@dataclass
class RankStack:
    """The stack of one thread, the outermost frame first. `frames`: (function, file, line)."""

    where: str  # the rank, as people read it: "trainers 17"
    group: str  # what is compared with each other: the mesh
    frames: Sequence[tuple[str, str, int]]
    idle: bool = False
    thread: str = ""


@dataclass
class _Branch:
    name: str
    file: str
    line: int
    ranks: list[str] = field(default_factory=list)
    below: dict[tuple[str, str, int], _Branch] = field(default_factory=dict)


def fold(stacks: Iterable[RankStack]) -> dict[str, Any]:
    """The tree: {name, file, line, count, ranks, straggler, children}; one child of the root is one group.

    A branch is a straggler's where few ranks of a group take it and many take another. Beyond MOST_NODES nodes
    the rest is left out and `cut` is true.
    """
    root = _Branch("all", "", 0)
    nodes, cut = 1, False
    for stack in stacks:
        branch = root
        root.ranks.append(stack.where)
        path = [(stack.group, "", 0), *list(stack.frames)[:MOST_DEPTH]]
        for key in path:
            following = branch.below.get(key)
            if following is None:
                if nodes >= MOST_NODES:
                    cut = True
                    break
                nodes += 1
                following = branch.below[key] = _Branch(*key)
            following.ranks.append(stack.where)
            branch = following
    return {**_told(root, 0, False, top=True), "cut": cut}


def _told(branch: _Branch, of: int, straggler: bool, top: bool = False) -> dict[str, Any]:
    number = len(branch.ranks)
    most = max((len(child.ranks) for child in branch.below.values()), default=0)
    children = []
    for child in sorted(branch.below.values(), key=lambda child: (-len(child.ranks), child.name, child.line)):
        alone = not top and most >= 3 and len(child.ranks) <= max(1, FEW * number) and len(child.ranks) < most
        children.append(_told(child, number, straggler or alone))
    return {
        "name": branch.name,
        "file": branch.file,
        "line": branch.line,
        "count": number,
        "ranks": branch.ranks if number <= 8 else [*branch.ranks[:8], f"and {number - 8} more"],
        "straggler": straggler,
        "children": children,
    }
