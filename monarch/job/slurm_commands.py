"""Slurm's commands, each with an end: one that finds no controller tries for a minute, and one that hangs is killed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from monarch.job import slurm_text
from monarch.job.scheduled import SchedulerError
from monarch.job.slurm_text import JobRow

SECONDS = 30.0  # for one command
_UNKNOWN = "Invalid job id"


def submit(script: str, environment: Mapping[str, str], submitted: Callable[[str], None]) -> None:
    """Hands a script to sbatch and tells `submitted` its id. SchedulerError in sbatch's words. When this is interrupted, an
    id that sbatch has given all the same is told before the interrupt goes on: nothing is in the queue that nobody knows."""
    sbatch = _started(["sbatch"], environment)
    interrupted: BaseException | None = None
    try:
        out, err = sbatch.communicate(script, SECONDS)
    except subprocess.TimeoutExpired:
        out, err = _killed(sbatch)
        if slurm_text.job_id(out) is None:
            raise SchedulerError(_silent("sbatch")) from None
    except BaseException as exc:
        interrupted = exc
        try:
            out, err = sbatch.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            out, err = _killed(sbatch)
    found = slurm_text.job_id(out)
    if found is not None:
        submitted(found)
    if interrupted is not None:
        raise interrupted
    if sbatch.returncode and found is None:
        raise SchedulerError(f"Failed to submit SLURM job: {_words(err) or f'sbatch ended with {sbatch.returncode}'}")
    if found is None:
        raise SchedulerError(f"Failed to parse job ID from sbatch output: {out.strip()!r}")


def look(job: str) -> list[JobRow]:
    """The job's components, also when it ended a short while ago; [] when Slurm knows nothing of it (any more)."""
    out, err, code = _run(["squeue", "-h", "-t", "all", "-j", job, "-o", slurm_text.SQUEUE_FORMAT])
    if code and _UNKNOWN in err:
        return []
    if code:
        raise SchedulerError(f"squeue failed: {_words(err) or f'status {code}'}")
    try:
        return slurm_text.rows(out)
    except ValueError as exc:  # a wrapper around squeue with a format of its own
        found = _from_json(job)
        if found is None:
            raise SchedulerError(str(exc)) from None
        return found


def _from_json(job: str) -> list[JobRow] | None:
    out, _, code = _run(["squeue", "-j", job, "--json"])
    try:
        return None if code else slurm_text.rows_from_json(msgspec.json.decode(out.encode()), job)
    except msgspec.DecodeError:
        return None


def host_names(nodes: str) -> list[str]:
    """ "n[1-2]" as n1, n2."""
    try:
        out, _, code = _run(["scontrol", "show", "hostnames", nodes])
    except SchedulerError:
        code = 1
    return slurm_text.split_host_list(nodes) if code else out.split()


def place_in_queue(job: str, partition: str | None) -> int | None:
    """How many jobs stand before this one, as squeue sorts them by priority; None where that cannot be told."""
    chosen = ["-p", partition] if partition else []
    try:
        out, _, code = _run(["squeue", "-h", "-t", "PENDING", "--sort=-p,i", "-o", "%A", *chosen])
    except SchedulerError:
        return None
    waiting = out.split()
    return None if code or job not in waiting else waiting.index(job)


def cancel(job: str) -> None:
    """Nothing when it has ended already."""
    _, err, code = _run(["scancel", job])
    if code and _UNKNOWN not in err and "already completing" not in err:
        raise SchedulerError(f"scancel {job} failed: {_words(err) or f'status {code}'}")


def steps(job: str) -> dict[str, str]:
    """The names of the running steps of a job, by their ids."""
    out, err, code = _run(["squeue", "-h", "-s", "-j", job, "-o", "%i|%j"])
    if code and _UNKNOWN in err:
        return {}
    if code:
        raise SchedulerError(f"squeue failed: {_words(err) or f'status {code}'}")
    return dict(line.strip().split("|", 1) for line in out.splitlines() if "|" in line)


def run_detached(command: Sequence[str], environment: Mapping[str, str], log: str) -> subprocess.Popen[bytes]:
    """A command in a session of its own that goes on when this process ends; what it prints goes to the file `log`."""
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as file:
        try:
            return subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=dict(environment),
                start_new_session=True,
            )
        except OSError as exc:
            raise SchedulerError(_missing(command[0], exc)) from None


def _run(command: list[str]) -> tuple[str, str, int]:
    process = _started(command, os.environ)
    try:
        out, err = process.communicate(None, SECONDS)
    except subprocess.TimeoutExpired:
        _killed(process)
        raise SchedulerError(_silent(command[0])) from None
    except BaseException:
        _killed(process)
        raise
    return out, err, process.returncode


def _started(command: list[str], environment: Mapping[str, str]) -> Any:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for us: a half-sent order would be one that nobody knows of
        )
    except OSError as exc:
        raise SchedulerError(_missing(command[0], exc)) from None


def _killed(process: Any) -> tuple[str, str]:
    process.kill()
    out, err = process.communicate()
    return out or "", err or ""


def _missing(command: str, exc: OSError) -> str:
    if not isinstance(exc, FileNotFoundError):
        return f"{command} cannot be run: {exc}"
    return (
        f"there is no {command} on PATH: SlurmJob asks Slurm by its own commands. Run this where they are (a login node), or "
        f"load the module that has them"
    )


def _silent(command: str) -> str:
    configuration = os.environ.get("SLURM_CONF")
    where = f" (SLURM_CONF is {configuration})" if configuration else ""
    return f"{command} did not answer within {SECONDS:g} s: Slurm's controller is not to be reached from here{where}"


def _words(err: str) -> str:
    """What a command of Slurm's has said, as one line."""
    return "; ".join(line.strip() for line in err.splitlines() if line.strip())
