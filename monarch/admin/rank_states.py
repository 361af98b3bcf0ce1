"""States of ranks, a letter each, as every grid has them: the dashboard's and the terminal screen's."""

from __future__ import annotations

# The letter of each state in a grid, the worst first: a process looks like the worst of its actors.
LETTERS = {
    "failed": "f",
    "unknown": "u",
    "stopping": "g",
    "processing": "p",
    "initializing": "n",
    "created": "c",
    "loading": "l",
    "saving": "s",
    "idle": "i",
    "client": "k",
    "stopped": "x",
}
STATES = {letter: state for state, letter in LETTERS.items()}
ABSENT = "."  # a rank of which nothing is known yet
_SEVERITY = {letter: number for number, letter in enumerate(LETTERS.values())}


def worse(one: str, other: str) -> str:
    """Returns the worse of two letters."""
    if ABSENT in (one, other):
        return other if one == ABSENT else one
    return min(one, other, key=lambda letter: _SEVERITY[letter])
