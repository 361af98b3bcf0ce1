"""kill -9 of ranks of a program under `monarch run`: all other ranks end, the command says which rank died, and ends with its
status, or begins anew. `python -m tests.procs.torch_deaths --command` runs many rounds of it."""

from __future__ import annotations

import os
import re
import select
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.procs.torch_deaths import die, step_of
from tests.support.command_line import CommandLine, command_line
from tests.support.patience import TIMEOUT

PHASES = ("begin", "forward", "backward", "optimizer", "checkpoint", "setup", "fsdp", "pipeline", "mesh")
_AT = 3  # the step in which it dies
_STEPS = 6  # of an attempt in which nobody does


def round_of(monarch: CommandLine, count: int, victims: Collection[int], phase: str, restarts: int, after: float = 0.0
             ) -> tuple[float, float]:  # fmt: skip
    """Runs the program with so many ranks, of which these die in that phase, so many seconds into it. Returns how many
    seconds after the last of them had died the last survivor ended, and how many until the command did; 0 if all began
    anew. AssertionError for an end that does not name the dead."""
    door = monarch.folder / "go"
    door.unlink(missing_ok=True)
    os.mkfifo(door)
    words = [phase, str(after), *map(str, sorted(victims))]
    begun = [
        "run",
        "--nproc-per-node",
        str(count),
        "--max-restarts",
        str(restarts),
        "-m",
        "tests.procs.torch_run_deaths",
    ]
    running = monarch.start(*begun, *words)
    taken = threading.Event()

    def end() -> None:
        taken.set()
        running.kill()

    limit = threading.Timer(TIMEOUT, end)
    limit.start()
    try:
        assert running.stdout is not None
        pids = dict(_rank_and_pid(running.stdout.readline()) for _ in range(count))
        ended = _ends({os.pidfd_open(pid): rank for rank, pid in pids.items()}, door)
        out, err = running.communicate()
        over = time.monotonic()
    finally:
        limit.cancel()
        running.kill()
        running.wait()
    died = max(ended[rank] for rank in victims)
    late = max((when - died for rank, when in ended.items() if rank not in victims), default=0.0)
    assert not taken.is_set(), (
        f"killed by this test: it went on after {TIMEOUT} s, {over - died:.1f} s after a death\n{err}"
    )
    assert running.returncode == (0 if restarts else 128 + signal.SIGKILL), f"status {running.returncode}\n{err}"
    named = re.search(
        r"monarch run: \S+: rank (\d+) was killed by SIGKILL \(9\) \(local rank \1 on \S+, pid (\d+)\)", err
    )
    assert named is not None and int(named[1]) in victims and int(named[2]) == pids[int(named[1])], err
    assert out.count("trained\n") == (count if restarts else 0), out
    return late, 0.0 if restarts else over - died


def _rank_and_pid(line: str) -> tuple[int, int]:
    rank, pid = line.split()
    return int(rank), int(pid)


def _ends(ranks: dict[int, int], door: Path) -> dict[int, float]:
    """Lets the victims die, and waits until every rank has ended. When each did, by rank."""
    found = {}
    poll = select.poll()
    for descriptor in ranks:
        poll.register(descriptor, select.POLLIN)
    with door.open("wb"):
        pass
    while ranks:
        ready = poll.poll(1000 * TIMEOUT)
        assert ready, f"ranks {sorted(ranks.values())} go on"
        for descriptor, _ in ready:
            found[ranks.pop(descriptor)] = time.monotonic()
            poll.unregister(descriptor)
            os.close(descriptor)
    return found


def rounds(number: int, counts: Sequence[int], phases: Sequence[str], chance: Random) -> None:
    """Runs so many rounds, and prints a line of each and one at the end."""
    late, over = [], []
    with tempfile.TemporaryDirectory() as folder, command_line(Path(folder)) as monarch:
        for one in range(number):
            count, phase = counts[one % len(counts)], phases[one // len(counts) % len(phases)]
            victims = chance.sample(range(count), chance.randrange(1, max(2, count // 2 + 1)))
            restarts, after = chance.choice([0, 0, 1]), chance.choice([0.0, chance.uniform(0.0, 0.02)])
            survivors, command = round_of(monarch, count, victims, phase, restarts, after)
            late.append(survivors)
            if not restarts:
                over.append(command)
            end = "begins anew" if restarts else f"command {command:.3f} s"
            print(f"{one}: {count} ranks, {victims} in {phase} +{after:.3f}: {survivors:.3f} s, {end}", flush=True)
    last = sorted(late)[int(0.95 * len(late))]
    print(f"{len(late)} rounds: survivors {statistics.median(late):.3f} s after, 95 % {last:.3f} s, at most "
          f"{max(late):.3f} s; the command {statistics.median(over):.3f} s, at most {max(over):.3f} s")  # fmt: skip


# --- a rank


def device_mesh(sizes: dict[str, int] | None = None) -> Any:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    if sizes is None:
        return init_device_mesh("cpu", (dist.get_world_size(),))
    others = sizes["tp"]
    return init_device_mesh("cpu", (dist.get_world_size() // others, others), mesh_dim_names=tuple(sizes))


def main(phase: str, after: float, victims: Collection[int]) -> None:
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    step, dies = 0, rank in victims and not attempt

    def enters(entered: str) -> None:
        if dies and entered == phase and step in (0, _AT):
            Path("go").read_bytes()  # until somebody looks
            if after:
                threading.Timer(after, die, (signal.SIGKILL,)).start()
            else:
                die(signal.SIGKILL)

    if not attempt:
        print(rank, os.getpid(), flush=True)
    enters("begin")
    import torch.distributed as dist

    dist.init_process_group("gloo")
    one_step = step_of(phase, enters, device_mesh)
    while step < _STEPS or not attempt:
        step += 1
        one_step()
    dist.destroy_process_group()
    print("trained", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), [int(rank) for rank in sys.argv[3:]])
