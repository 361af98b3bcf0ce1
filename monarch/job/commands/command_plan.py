"""The plan of an `exec_command`: what each process runs, and where its output goes. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

SUBDIR = "$SUBDIR"
STDOUT, STDERR = "stdout.txt", "stderr.txt"
PYTHON = "{python}"


class Sink(msgspec.Struct, frozen=True):
    """A stream's destination: into a file on its host ("": none), to the client, or both. `terminal`: rows and columns of the
    client's terminal, for a stream that is to be one as well; zeros for a pipe. `filtered`: a file that several commands of
    the host share, for lines with one of `filters`, each behind `label`."""

    file: str = ""
    shown: bool = True
    terminal: tuple[int, int] = (0, 0)
    filtered: str = ""
    filters: list[str] = []
    label: str = ""


class RankCommand(msgspec.Struct, frozen=True):
    """One command for one process. `words`: a program and its arguments; with `in_process` a Python program that runs in the
    process itself. `workdir`: its working directory, which has to be there; without one `folder`, if that is there.
    `defaults`: variables that the process's own environment goes over. `report_variable`: names a file, for what it wants to
    have told at its end. `path_first`: a folder before all others on PATH. A first word PYTHON is the interpreter of
    the process. `script`: what bash is to run, with `words` as its name and arguments; None without one. `passing`: a folder
    above the files of its output that is removed with the run of its host; "" without one. `stdin`: the name of a door at
    which a command on the client's machine gets the client's standard input, which is sent to one elsewhere; "" for none.
    `stopped_limit`: seconds that it may be stopped (SIGSTOP) in one go until it is killed; 0 for ever."""

    words: list[str]
    env: dict[str, str]
    in_process: bool = False
    workdir: str | None = None
    folder: str = "/"
    stdout: Sink = Sink()
    stderr: Sink = Sink()
    defaults: dict[str, str] = {}
    report_variable: str = ""
    path_first: str = ""
    grace: float = 5.0  # seconds between SIGTERM and the end of the process, when it is stopped
    script: bytes | None = None
    passing: str = ""
    stdin: str = ""
    stopped_limit: float = 0.0


def words_of(cmd: Sequence[str] | str) -> list[str]:
    """A text, or a sequence of one word that a shell would take apart, is a line for bash; anything else is a program and its
    arguments, as they are. TypeError and ValueError for anything but a command."""
    if isinstance(cmd, str):
        words = [cmd]
    elif isinstance(cmd, Sequence) and all(isinstance(word, str) for word in cmd):
        words = list(cmd)
    else:
        raise TypeError(f'cmd is a list of strings, as in ["echo", "hello"]; got {cmd!r}')
    if not words or not words[0].strip():
        raise ValueError('cmd is empty: say what to run, as in ["echo", "hello"]')
    if len(words) == 1 and (isinstance(cmd, str) or _for_shell(words[0])):
        return ["bash", "-c", words[0]]
    return words


def _for_shell(word: str) -> bool:
    return any(character in word for character in " \t\n;|&<>$`*?()'\"~")


def coordinates(fixed: Mapping[str, int], point: Mapping[str, int], labels: Sequence[str]) -> dict[str, int]:
    """Returns the place of a process: its own dimensions, and those in which one place was chosen for all; in the order
    of `labels`."""
    known = {**fixed, **point}
    return {label: known[label] for label in labels if label in known}


def rank_environment(place: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, str]:
    """MONARCH_RANK_<dim> and MONARCH_SIZE_<dim> of a process, names as the dimensions are written."""
    env = {}
    for label, rank in place.items():
        env[f"MONARCH_RANK_{label}"] = str(rank)
        env[f"MONARCH_SIZE_{label}"] = str(sizes[label])
    return env


def folder_name(place: Mapping[str, int]) -> str:
    """Returns what stands for $SUBDIR: `hosts_0_gpu_3`."""
    return "_".join(f"{label}_{rank}" for label, rank in place.items()) or "rank_0"


def output_folder(output_dir: str, place: Mapping[str, int], processes: int) -> str:
    """The folder of one process's output: `output_dir` itself for a single one, else one for each, so that none writes over
    another's files, whatever disks the hosts share."""
    name = folder_name(place)
    if SUBDIR in output_dir:
        return output_dir.replace(SUBDIR, name)
    return output_dir if processes == 1 else os.path.join(output_dir, name)


def prefix(place: Mapping[str, int]) -> str:
    """Returns what lines of one process of several begin with where they are printed."""
    return f"[{' '.join(f'{label}={rank}' for label, rank in place.items())}] "


def shell_status(returncode: int) -> int:
    """Returns the status as a shell says it: 128 and the signal's number for what a signal ended."""
    return returncode if returncode >= 0 else min(128 - returncode, 255)
