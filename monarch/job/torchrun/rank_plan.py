"""The plan of each rank: what it runs, its environment, and where its output goes. Pure."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

from monarch.job.commands.command_plan import RankCommand, Sink
from monarch.job.torchrun.arguments import RankStreams, TorchrunOptions
from monarch.spmd import layout

STDOUT, STDERR = 1, 2
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


def commands(
    options: TorchrunOptions,
    sizes: tuple[int, int],
    run_id: str,
    attempt: int,
    master: tuple[str, int],
    log_dir: str,
    folder: str,
    env: Mapping[str, str],
) -> list[RankCommand]:
    """Returns the command of each rank. `sizes`: hosts, and ranks on each."""
    environments = layout.environments(layout.by_last_dimension(sizes))
    found = []
    for rank, place in enumerate(environments):
        local = rank % sizes[1]
        environment = place | {
            "ROLE_NAME": options.role,
            "MASTER_ADDR": master[0],
            "MASTER_PORT": str(master[1]),
            **layout.ELASTIC,
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            "TORCHELASTIC_MAX_RESTARTS": str(options.max_restarts),
            "TORCHELASTIC_RUN_ID": run_id,
            "TORCHELASTIC_SIGNALS_TO_HANDLE": ",".join(signal.Signals(number).name for number in options.signals),
            **env,
        }
        out, err = (_sink(options, log_dir, attempt, rank, local, stream) for stream in (STDOUT, STDERR))
        found.append(
            RankCommand(
                options.command,
                environment,
                folder=folder,
                stdout=out,
                stderr=err,
                grace=options.grace,
                report_variable=ERROR_FILE,
                defaults={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
            )
        )
    return found


def _sink(options: TorchrunOptions, log_dir: str, attempt: int, rank: int, local: int, stream: int) -> Sink:
    """Redirected streams go into a file, those of --tee are shown as well. A folder is named by the rank in the whole
    run: hosts may share a disk."""
    name = "stdout.log" if stream == STDOUT else "stderr.log"
    file = os.path.join(log_dir, f"attempt_{attempt}", str(rank), name)
    shown = options.shown is None or local in options.shown
    if options.tee.of(local, stream):
        return Sink(file, shown)
    if options.redirects.of(local, stream):
        return Sink(file, False)
    return Sink("", shown)


def writes_files(options: TorchrunOptions) -> bool:
    return options.redirects.any or options.tee.any


def log_folder(options: TorchrunOptions, run_id: str, unique: str, temporary: str) -> str:
    """Returns a folder of this run alone, whatever else writes below --log-dir."""
    base = temporary if options.log_dir is None else os.path.abspath(options.log_dir)
    return os.path.join(base, f"{run_id}_{unique}")


def prefixes(options: TorchrunOptions, sizes: tuple[int, int]) -> list[str | None]:
    """Returns what a rank's lines begin with where they are shown: torchrun's `[default0]:` under --tee. One rank's output is
    shown as it comes."""
    tee: RankStreams = options.tee
    if not tee.any:
        return [None] if sizes[0] * sizes[1] == 1 else [""] * (sizes[0] * sizes[1])
    return [f"[{options.role}{rank % sizes[1]}]:" for rank in range(sizes[0] * sizes[1])]


def chosen(nodes: tuple[int, int] | None, present: int, where: str) -> int:
    """Returns how many of the hosts take part. ValueError when there are too few."""
    least, most = nodes or (1, present)
    if present < least:
        raise ValueError(f"--nnodes asks for {least} host(s) or more, and {where} has {present}")
    return min(most, present)


def count_of(per_node: str, found: Sequence[tuple[str, int, int]]) -> int:
    """Ranks on each host. `found`: of each host its name, devices and processors. ValueError when they are not alike,
    or for gpu without any."""
    if per_node.isdecimal():
        return int(per_node)
    counts = {}
    for host, devices, processors in found:
        if per_node == "gpu" and not devices:
            raise ValueError(f"--nproc-per-node gpu: {host} has no device that a program there can see")
        counts[host] = processors if per_node == "cpu" or (per_node == "auto" and not devices) else devices
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{host}: {count}" for host, count in counts.items())
        raise ValueError(f"--nproc-per-node {per_node} means another number on each host ({told}): give a number")
    return next(iter(counts.values()))
