"""The meaning of a torchrun command, given as a list of words. Pure."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from typing import NamedTuple

from monarch.job.torchrun import arguments

_HEADS = (["torchrun"], ["torch.distributed.run"], ["-m", "torch.distributed.run"], ["-m", "torchrun"])


class Parsed(NamedTuple):
    """Ranks on each host, the program (`script.py args...` or `-m module args...`), and --nnodes where that was said."""

    per_host: int
    words: list[str]
    nodes: str | None


def parse(command: Sequence[str]) -> Parsed:
    """Returns what the command asks for. ValueError for what is neither a torchrun command nor `python script.py`."""
    words = list(command)
    if words and _name(words[0]).startswith("python"):
        words = words[1:]
        while words and words[0] == "-u":
            words = words[1:]
        if not any(words[: len(head)] == head for head in _HEADS):
            if words and (words[0] == "-m" or not words[0].startswith("-")):
                return Parsed(1, words, None)
            raise ValueError(_not_understood(command))
    for head in _HEADS:
        if words[: len(head)] == head or (words and len(head) == 1 and _name(words[0]) == head[0]):
            return _torchrun(words[len(head) :], command)
    # An entrypoint of its own, which runs what comes behind it: torchrun is its first argument.
    if len(words) > 1 and _name(words[1]) == "torchrun":
        return _torchrun(words[2:], command)
    raise ValueError(_not_understood(command))


def _torchrun(words: Sequence[str], command: Sequence[str]) -> Parsed:
    parser = _Parser(add_help=False)
    arguments.add_arguments(parser)
    try:
        given = parser.parse_args(list(words))
    except ValueError as error:
        raise ValueError(f"{_not_understood(command)}: {error}") from None
    count = given.nproc_per_node or "1"
    if not count.isdecimal() or int(count) < 1:
        warnings.warn(f"--nproc-per-node {count} is not a number: one rank on each host", UserWarning, stacklevel=3)
        count = "1"
    program = [given.training_script, *given.training_script_args]
    return Parsed(int(count), ["-m", *program] if given.module else program, given.nnodes)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise ValueError(message)


def _name(word: str) -> str:
    return word.rpartition("/")[2]


def _not_understood(command: Sequence[str]) -> str:
    return f"not a torchrun command, nor python SCRIPT: {' '.join(command)}"
