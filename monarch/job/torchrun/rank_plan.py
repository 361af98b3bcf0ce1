"""The plan of each rank: what it runs, its environment, and where its output goes. Pure."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from monarch.job.commands.command_plan import RankCommand, Sink
from monarch.job.torchrun.arguments import TorchrunOptions
from monarch.spmd import layout

STDOUT, STDERR = 1, 2
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


class ClientStreams(NamedTuple):
    """The standard streams of the program that runs the ranks. `stdin`: the name of its door, "" for none; `interactive`: it
    is a terminal; `terminals`: of stdout and stderr, rows and columns where it is one, else zeros."""

    stdin: str = ""
    interactive: bool = False
    terminals: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))


_NO_STREAMS = ClientStreams()


def commands(
    options: TorchrunOptions,
    sizes: tuple[int, int],
    run_id: str,
    attempt: int,
    master: tuple[str, int],
    log_dir: str,
    folder: str,
    env: Mapping[str, str],
    streams: ClientStreams = _NO_STREAMS,
    visible: Sequence[str | None] = (),
) -> list[RankCommand]:
    """Returns the command of each rank. `sizes`: hosts, and ranks on each. Rank 0 gets the client's standard input: were it
    all of them, chance would say who reads what. `visible`: CUDA_VISIBLE_DEVICES of each host, with --virtual-local-rank.
    ValueError when a host shows fewer devices than it has ranks."""
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
            **(_own_device(local, visible[rank // sizes[1]]) if options.virtual_local_rank else {}),
            **env,
        }
        out, err = (
            _sink(options, log_dir, attempt, rank, local, stream, streams.terminals[stream - 1])
            for stream in (STDOUT, STDERR)
        )
        found.append(
            RankCommand(
                options.command,
                environment,
                folder=folder,
                stdout=out,
                stderr=err,
                grace=options.grace,
                stopped_limit=options.suspect_timeout,
                report_variable=ERROR_FILE,
                defaults={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
                stdin="" if rank else streams.stdin,
            )
        )
    return found


def _own_device(local: int, visible: str | None) -> dict[str, str]:
    """Returns the variables by which a rank sees its device alone, as the first one."""
    devices = [str(number) for number in range(local + 1)] if visible is None else visible.split(",")
    if local >= len(devices):
        raise ValueError(
            f"--virtual-local-rank: local rank {local} has no device of its own, CUDA_VISIBLE_DEVICES is {visible!r}"
        )
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": devices[local].strip()}


def _sink(
    options: TorchrunOptions,
    log_dir: str,
    attempt: int,
    rank: int,
    local: int,
    stream: int,
    terminal: tuple[int, int],
) -> Sink:
    """Redirected streams go into a file, those of --tee are shown as well. A folder is named by the rank in the whole
    run: hosts may share a disk."""
    name = "stdout.log" if stream == STDOUT else "stderr.log"
    file = os.path.join(log_dir, f"attempt_{attempt}", str(rank), name)
    shown = options.shown is None or local in options.shown
    if options.tee.of(local, stream):
        filters = options.filters[stream - 1]
        filtered = os.path.join(log_dir, f"attempt_{attempt}", f"filtered_{name}") if filters else ""
        return Sink(file, shown, filtered=filtered, filters=filters, label=_label(options, local) if filters else "")
    if options.redirects.of(local, stream):
        return Sink(file, False)
    return Sink("", shown, terminal)


def writes_files(options: TorchrunOptions) -> bool:
    return options.redirects.any or options.tee.any


def log_folder(options: TorchrunOptions, run_id: str, unique: str, temporary: str) -> str:
    """Returns a folder of this run alone, whatever else writes below --log-dir."""
    base = temporary if options.log_dir is None else os.path.abspath(options.log_dir)
    return os.path.join(base, f"{run_id}_{unique}")


def prefixes(options: TorchrunOptions, sizes: tuple[int, int]) -> list[tuple[str | None, str | None]]:
    """Returns what lines of each rank's stdout and stderr begin with where they are shown: torchrun's `[default0]:` for the
    streams of --tee. One rank's output is shown as it comes."""
    found: list[tuple[str | None, str | None]] = []
    for rank in range(sizes[0] * sizes[1]):
        local = rank % sizes[1]
        bare = None if sizes[0] * sizes[1] == 1 else ""
        out, err = (_label(options, local) if options.tee.of(local, stream) else bare for stream in (STDOUT, STDERR))
        found.append((out, err))
    return found


def _label(options: TorchrunOptions, local: int) -> str:
    return f"[{options.role}{local}]:"


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
