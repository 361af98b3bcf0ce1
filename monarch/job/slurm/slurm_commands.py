"""Slurm's commands, each with an end: one that finds no controller tries for a minute, and one that hangs is killed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

import msgspec

import monarch.job.slurm.text as slurm_text
from monarch._linux import private_files
from monarch.job.scheduled import SchedulerError
from monarch.job.slurm.text import JobRow

SECONDS = 30.0  # for one command
_UNKNOWN = "Invalid job id"

# What a command says, in any letter case, where this machine has no cluster -> what to do. The lines before it tell of
# resolvers and files that were tried.
_NOT_SET_UP = (
    "Slurm is installed on this machine and not set up: it has no slurm.conf that can be read. Run this on a login node of "
    "the cluster, or set SLURM_CONF to the cluster's file. Without a cluster, ProcessJob has hosts on this machine"
)
_ADVICE = {
    "could not establish a configuration source": _NOT_SET_UP,
    "unable to process configuration file": _NOT_SET_UP,
    "unable to contact slurm controller": "Slurm's controller is not to be reached from here: `scontrol ping` says where it "
    "should be, and SLURM_CONF names the file that says so",
}


def submit(script: str, environment: Mapping[str, str]) -> str:
    """Hands a script to sbatch; the job's id. SchedulerError in sbatch's words."""
    out, err, code = _run(["sbatch"], environment, script)
    found = slurm_text.job_id(out)
    if code and found is None:
        raise SchedulerError(f"Failed to submit SLURM job: {_words(err) or f'sbatch ended with {code}'}")
    if found is None:
        raise SchedulerError(f"Failed to parse job ID from sbatch output: {out.strip()!r}")
    return found


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
    """Expands "n[1-2]" to n1, n2."""
    try:
        out, _, code = _run(["scontrol", "show", "hostnames", nodes])
    except SchedulerError:
        code = 1
    return slurm_text.split_host_list(nodes) if code else out.split()


def place_in_queue(job: str, partition: str | None) -> int | None:
    """Returns how many jobs stand before this one, as squeue sorts them by priority; None where that cannot be told."""
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
    try:
        descriptor = private_files.open_log(log)
    except private_files.UntrustedFileError as exc:
        raise SchedulerError(f"the workers cannot write their log: {exc}. Give another log_dir") from None
    with open(descriptor, "wb") as file:
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


def _run(
    command: list[str], environment: Mapping[str, str] | None = None, given: str | None = None
) -> tuple[str, str, int]:
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if environment is None else dict(environment),
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for us: a half-sent order would be one that nobody knows of
        )
    except OSError as exc:
        raise SchedulerError(_missing(command[0], exc)) from None
    try:
        out, err = process.communicate(given, SECONDS)
    except subprocess.TimeoutExpired:
        raise SchedulerError(_silent(command[0])) from None
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    return out, err, process.returncode


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
    """Returns what a command of Slurm's has said, as one line, and what to do about it where that is known."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    for sign, advice in _ADVICE.items():
        if telling := [line for line in lines if sign in line.lower()]:
            return f"{telling[-1]}. {advice}"
    return "; ".join(lines)
