"""A peer's virtual environment under peers/.venvs/<name>, made on first use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from _contender import Contender

VENVS = Path(__file__).resolve().parent / ".venvs"
INSTALL_TIMEOUT_S = 1200


def peer(
    name: str,
    distribution: str,
    wanted: Sequence[Sequence[str]],
    probe: str,
    env: dict[str, str] | None = None,
) -> Contender:
    """The peer `name`, ready to run or with the reason why not.

    `wanted` lists sets of requirements, best first: the first that pip can install is taken, and a note
    says so when it was not the first. The variable MONARCH_BENCH_PEER_<NAME> names an interpreter to use
    instead; nothing is ever installed into that one.
    """
    override = os.environ.get(f"MONARCH_BENCH_PEER_{name.upper()}", "")
    if override:
        return _described(Contender(name, override, env or {}, probe), distribution)
    for requirements in wanted:
        python, problem = _ensure(VENVS / name, list(requirements))
        if python:
            note = "" if requirements == wanted[0] else f"{' '.join(wanted[0])} could not be installed"
            return _described(Contender(name, python, env or {}, probe, note=note), distribution)
    return Contender(name, skip=f"pip install {' '.join(wanted[-1])} failed: {problem}")


def _described(contender: Contender, distribution: str) -> Contender:
    if not Path(contender.python).exists():
        return replace(contender, skip=f"no interpreter at {contender.python}")
    code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    done = subprocess.run([contender.python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    version = f"{distribution} {done.stdout.strip() or 'of unknown version'}"
    return replace(contender.checked(), version=version)


def _ensure(venv: Path, requirements: list[str]) -> tuple[str, str]:
    """(interpreter, "") of a venv that has `requirements`, or ("", what went wrong)."""
    python = venv / "bin" / "python"
    marker = venv / "installed.json"  # written last: a venv without it was interrupted and is made anew
    if marker.exists() and python.exists() and json.loads(marker.read_text()) == requirements:
        return str(python), ""
    print(f"making {venv} with {' '.join(requirements)} ...", file=sys.stderr, flush=True)
    shutil.rmtree(venv, ignore_errors=True)
    for command in (
        [sys.executable, "-m", "venv", str(venv)],
        [str(python), "-m", "pip", "install", *requirements],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return "", f"not done after {INSTALL_TIMEOUT_S} s"
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
            return "", errors[-1] if errors else f"exit status {done.returncode}"
    marker.write_text(json.dumps(requirements))
    return str(python), ""
