"""Run on the first node of a batch job: starts the workers, runs the client, and ends with its status.

python -m monarch.job.slurm.batch --workers 'srun ...' -- python train.py
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence

from monarch.job.names import BATCH_JOB

_GRACE = 30.0  # seconds that workers get to end


def client_command(script: str, python: str) -> list[str]:
    """The words of "train.py --x 1", with an interpreter before the name of a script. ValueError when there are none."""
    words = shlex.split(script)
    if not words:
        raise ValueError("client_script is empty: name a script, or a command")
    return [python, *words] if words[0].endswith(".py") else words


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m monarch.job.slurm.batch")
    parser.add_argument("--workers", action="append", default=[], metavar="COMMAND")
    parser.add_argument("client", nargs="+")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)  # scancel
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for command in options.workers:
            workers.append(subprocess.Popen(shlex.split(command), stdin=subprocess.DEVNULL))
        status = subprocess.run(options.client, env=os.environ | {BATCH_JOB: "1"}, check=False).returncode
    except FileNotFoundError as exc:
        print(f"monarch: the client cannot be run: {exc.strerror}: {exc.filename}", file=sys.stderr)
        status = 127
    except KeyboardInterrupt:
        status = 128 + signal.SIGTERM
    finally:
        _end(workers)
    return status if status >= 0 else 128 - status


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _end(workers: list[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        worker.terminate()
    for worker in workers:
        try:
            worker.wait(_GRACE)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
