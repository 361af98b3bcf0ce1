"""How do calls, broadcasts and spawns grow with the number of processes and hosts? What does the tree of agents bring?

Hosts are stood for by worker agents on this machine (ipc:// addresses), so everything shares its cores: elapsed times
say what the whole mesh costs here, processor times what each part of it does. `docs/scale.md` says what follows for clusters.
Where real processes do not fit, and beside them for comparison, the cluster in memory of `monarch.testing` is measured.

    python benchmarks/scale.py [--quick] [--rounds N] [--only hosts,cluster] [--plot docs/scale.svg] [--from FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import _scale_model as model
from _contender import BENCHMARKS, WORKLOADS, ours
from _pictures import pyplot_for
from _process import run_workload

Points = list[dict[str, Any]]

# Shapes are (hosts, processes a host). `vary` is the shape on whose processes trees of other widths are tried, and none.
FULL: dict[str, Any] = {
    "hosts": 64,
    "crossing": [[1, 1], [1, 2], [1, 4], [1, 8], [2, 1], [4, 1], [8, 1], [16, 1], [2, 4], [4, 4], [8, 4]],
    "shapes": [[1, 1], [1, 8], [8, 1], [4, 4], [4, 16], [64, 1], [16, 4], [16, 16], [64, 4], [64, 16]],
    "vary": [64, 4],
    "vary_hosts": [16, 64],
    "widths": [2, 4, 16, 64],
    "least": 8,
    "most": 300,
    "seconds": 1.0,  # for the calls of a shape, and about as long for its casts
    "warmup": 2,
    "budget": 200,  # seconds; what has not begun by then is left out
}
QUICK = {
    **FULL,
    "hosts": 16,
    "crossing": [[1, 2], [2, 1]],
    "shapes": [[1, 1], [1, 8], [8, 1], [16, 1], [8, 8], [16, 4]],
    "vary": [16, 1],
    "vary_hosts": [16],
    "widths": [2, 16],
    "seconds": 0.3,
    "least": 5,
    "budget": 40,
}
MEMORY: dict[str, Any] = {**FULL, "shapes": [[1, 1], [1, 8], [8, 8], [16, 16], [64, 16]], "budget": 60}
QUICK_MEMORY = {**QUICK, "shapes": [[1, 1], [1, 8], [8, 8]]}
BYTES_A_PROC, BYTES_A_HOST = 10e6, 40e6  # of real processes; of an agent and its fork server
CORES = os.cpu_count() or 1
_SHAPE = f"  {'hosts':>6}{'procs':>7}"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round, up to 64 processes on 16 hosts")
    parser.add_argument("--rounds", type=int, default=1, help="rounds (default 1); figures are the median of them")
    parser.add_argument("--only", default="hosts,cluster", help="comma-separated: hosts,cluster")
    parser.add_argument("--plot", type=Path, help="write the figure there (needs matplotlib)")
    parser.add_argument("--markdown", action="store_true", help="print the tables of docs/scale.md")
    parser.add_argument("--from", dest="recorded", type=Path, help="show a JSON line of an earlier run instead")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 when a run failed."""
    options = parse(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or what runs would be left behind
    if options.recorded:
        record = json.loads(options.recorded.read_text().splitlines()[-1])
    else:
        record = measure(options)
        print(json.dumps(record), flush=True)
        out = BENCHMARKS / "out"
        out.mkdir(exist_ok=True)
        with open(out / "scale.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    print("\n".join(markdown(record) if options.markdown else tables(record)))
    if options.plot and record.get("hosts_points"):
        plot(record, options.plot)
    return 1 if record["problems"] else 0


# --- measuring


def measure(options: argparse.Namespace) -> dict[str, Any]:
    rounds = options.rounds
    asked = {
        "hosts": QUICK if options.quick else FULL,
        "cluster": QUICK_MEMORY if options.quick else MEMORY,
    }
    contender = ours()
    load = os.getloadavg()[0]
    found: dict[str, list[dict[str, Any]]] = {}
    problems: dict[str, str] = {}
    for round_ in range(rounds):
        for name in options.only.split(","):
            if name in problems:
                continue
            params = fitting(asked[name]) if name == "hosts" else asked[name]
            command = [contender.python, str(WORKLOADS / "scale.py"), name, json.dumps(params)]
            print(f"{name}, round {round_ + 1} of {rounds}", file=sys.stderr, flush=True)
            outcome = run_workload(command, contender.environment(), WORKLOADS, 300)
            if outcome.failure:
                problems[name] = outcome.failure
            if outcome.left_behind:
                problems.setdefault(name, f"{outcome.left_behind} processes were left behind")
            if outcome.samples:
                found.setdefault(name, []).append(dict(outcome.samples))
    return {
        "question": "scale",
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quick": options.quick,
        "rounds": rounds,
        "load": [round(load, 2), round(os.getloadavg()[0], 2)],
        "machine": {"cores": CORES, "arch": platform.machine(), "system": platform.platform(terse=True)},
        "python": platform.python_version(),
        "problems": problems,
        "left_out": {name: results[0]["left_out"] for name, results in found.items()},
        **{
            f"{name}_{part}": merged([result[part] for result in results])
            for name, results in found.items()
            for part in ("points", "crossing")
        },
    }


def fitting(params: dict[str, Any]) -> dict[str, Any]:
    """Without the shapes for which this machine has no memory, process numbers or descriptors."""
    with open("/proc/meminfo", encoding="ascii") as file:
        free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
        numbers = int(file.read())
    room = free * 0.9 - params["hosts"] * BYTES_A_HOST
    kept = [
        [hosts, per_host]
        for hosts, per_host in params["shapes"]
        if hosts * per_host * BYTES_A_PROC < room and 4 * hosts * per_host < numbers * 0.9
    ]
    for shape in params["shapes"]:
        if shape not in kept:
            print(f"left out, for want of room: {shape[0]} hosts x {shape[1]}", file=sys.stderr)
    return {**params, "shapes": kept}


def merged(rounds: Sequence[Points]) -> Points:
    """The rounds' medians, point by point."""
    keys = ("hosts", "per_host", "procs", "width")  # two turns of one round count as two rounds
    by_shape: dict[tuple[Any, ...], Points] = {}
    for points in rounds:
        for point in points:
            by_shape.setdefault(tuple(point.get(key) for key in keys), []).append(point)
    return [
        {
            name: point[name] if name in keys else float(f"{median(other[name] for other in same):.5g}")
            for point in same[:1]
            for name in point
            if name != "turn"
        }
        for same in by_shape.values()
    ]


# --- showing


def tables(record: Mapping[str, Any]) -> list[str]:
    lines = [
        f"How do calls, broadcasts and spawns grow? {record['rounds']} round(s), {record['machine']['cores']} cores, "
        f"load {record['load'][0]} before, python {record['python']}"
    ]
    for name, problem in record["problems"].items():
        lines.append(f"  {name} failed: {problem}")
    for name, shapes in record["left_out"].items():
        if shapes:
            lines.append(f"  {name}: left out, time was up: {shapes}")
    points = record.get("hosts_points", [])
    plain = [point for point in points if "width" not in point]
    if plain:
        lines += ["", "real processes, hosts simulated by agents", *growth(plain)]
    if record.get("cluster_points"):
        lines += ["", "in memory, one interpreter", *growth(record["cluster_points"])]
    if plain:
        lines += ["", "the client's work [µs of processor time]", *client(plain)]
    varied = [point for point in points if "width" in point]
    if varied:
        lines += ["", "width of the tree (0: no tree, a message a receiver)", *widths(varied)]
    if record.get("hosts_crossing"):
        lines += ["", "few receivers: with the tree against without [ratio, below 1 the tree is faster]"]
        lines += crossing(record["hosts_crossing"])
    if len(plain) > 3:
        lines += ["", *fitted(plain)]
    return lines


def growth(points: Points) -> list[str]:
    head = f"  {'hosts':>6}{'procs':>7}{'call p50':>12}{'first call':>12}{'cast issue':>12}{'casts':>12}{'spawn':>10}"
    lines = [head, f"  {'':>6}{'':>7}{'ms':>12}{'ms':>12}{'µs':>12}{'1/s':>12}{'s':>10}"]
    for point in points:
        lines.append(
            f"  {point['hosts']:>6}{point['procs']:>7}{point['call'] * 1e3:>12.2f}{point['call_cold'] * 1e3:>12.2f}"
            f"{point['cast_issue'] * 1e6:>12.1f}{1 / point['cast']:>12,.0f}{point['spawn']:>10.2f}"
        )
    return lines


def client(points: Points) -> list[str]:
    lines = [
        f"  {'':>13}{'a cast':>30}{'a call':>36}",
        "".join([_SHAPE, *(f"{who:>10}" for who in ("thread", "I/O", "agent"))])
        + "".join(f"{who:>12}" for who in ("issue", "thread", "I/O", "agent")),
    ]
    for point in points:
        cast = "".join(f"{point[f'cast_{who}_cpu'] * 1e6:>10.1f}" for who in ("client", "io", "agent"))
        call = "".join(f"{point[f'call_{who}_cpu'] * 1e6:>12.1f}" for who in ("client", "io", "agent"))
        lines.append(f"  {point['hosts']:>6}{point['procs']:>7}{cast}{point['call_issue'] * 1e6:>12.1f}{call}")
    return lines


def widths(points: Points) -> list[str]:
    lines = [f"  {'hosts':>6}{'procs':>7}{'width':>7}{'call ms':>10}{'cast µs':>10}{'issue µs':>10}{'agent µs':>12}"]
    for point in points:
        agent = point["call_agent_cpu"]
        lines.append(
            f"  {point['hosts']:>6}{point['procs']:>7}{point['width']:>7}{point['call'] * 1e3:>10.2f}"
            f"{point['cast'] * 1e6:>10.0f}{point['cast_issue'] * 1e6:>10.1f}{agent * 1e6:>12.0f}"
        )
    return lines


def crossing(points: Points) -> list[str]:
    lines = [f"  {'hosts':>6}{'procs':>7}{'call':>10}{'call, all work':>16}{'cast':>10}{'cast issue':>12}"]
    for direct, tree in zip(points[::2], points[1::2], strict=True):
        ratios = (tree["call"] / direct["call"], busy(tree, "call") / busy(direct, "call"))
        casts = (tree["cast"] / direct["cast"], tree["cast_issue"] / direct["cast_issue"])
        shape = f"  {direct['hosts']:>6}{direct['procs']:>7}"
        lines.append(f"{shape}{ratios[0]:>10.2f}{ratios[1]:>16.2f}{casts[0]:>10.2f}{casts[1]:>12.2f}")
    return lines


def busy(point: Mapping[str, float], what: str) -> float:
    """Processor seconds of all who take part."""
    return sum(point[f"{what}_{who}_cpu"] for who in ("client", "io", "agent", "workers", "procs"))


def fitted(points: Points) -> list[str]:
    """The constants, how well they fit, and what they say for clusters."""
    shaped = [{**point, **model.counts(point["hosts"], point["per_host"])} for point in points]
    made = model.fits(shaped)
    lines = ["constants of the model [µs]"]
    for kind, found in made.items():
        parts = ", ".join(f"{constant * 1e6:.3g} {name}" for name, constant in found.constants.items())
        lines.append(f"  {kind:<14}{parts:<46} median error {found.error:.0%}")
    lines += ["", f"model against measured: all work / {CORES} cores, and elapsed [ms]"]
    lines.append(_SHAPE + "".join(f"{what + ': model':>14}{'work':>10}{'elapsed':>10}" for what in ("call", "cast")))
    for point in shaped:
        line = f"  {point['hosts']:>6}{point['procs']:>7}"
        for what in ("call", "cast"):
            figures = (model.work(made, what, point) / CORES, busy(point, what) / CORES, point[what])
            line += "".join(f"{figure * 1e3:>{width}.3g}" for figure, width in zip(figures, (14, 10, 10), strict=True))
        lines.append(line)
    cluster = model.Cluster(made, LATENCY)
    lines += ["", f"on clusters, 8 processes a host, {LATENCY * 1e6:.0f} µs one way: cast [ms], casts [1/s], call [ms]"]
    for hosts in (16, 100, 1000, 10_000):
        cast, row, call = cluster.cast(hosts, 8), cluster.casts(hosts, 8), cluster.call(hosts, 8)
        lines.append(f"  {hosts:>7} hosts{cast * 1e3:>10.2f}{1 / row:>10,.0f}{call * 1e3:>10.1f}")
    return lines


def markdown(record: Mapping[str, Any]) -> list[str]:
    """The tables of docs/scale.md."""
    points = [
        {**point, **model.counts(point["hosts"], point["per_host"])}
        for point in record["hosts_points"]
        if "width" not in point
    ]
    points.sort(key=lambda point: (point["procs"], point["hosts"]))
    lines = ["| hosts | procs | spawn, s | first call, ms | call, ms | cast, ms | casts/s |", "|---" * 7 + "|"]
    for point in points:
        cells = (point["spawn"], point["call_cold"] * 1e3, point["call"] * 1e3, point["cast"] * 1e3)
        lines.append(row(point["hosts"], int(point["procs"]), *map(short, cells), f"{1 / point['cast']:,.0f}"))
    lines += ["", "| hosts | procs | cast: thread | I/O | agent | call: thread | I/O | agent |", "|---" * 8 + "|"]
    for point in points:
        spent = [point[f"{what}_{who}_cpu"] * 1e6 for what in ("cast", "call") for who in ("client", "io", "agent")]
        lines.append(row(point["hosts"], int(point["procs"]), *(f"{value:,.0f}" for value in spent)))
    made = model.fits(points)
    lines += ["", "| work | constants, µs | median error |", "|---|---|---|"]
    for kind, found in made.items():
        parts = ", ".join(f"{constant * 1e6:.3g} {name}" for name, constant in found.constants.items())
        lines.append(row(kind.replace("_", ", "), parts, f"{found.error:.0%}"))
    lines += ["", "| hosts | procs | call: model, ms | measured | elapsed | cast: model, ms | measured | elapsed |"]
    lines.append("|---" * 8 + "|")
    for point in points:
        cells = [
            short(figure * 1e3)
            for what in ("call", "cast")
            for figure in (model.work(made, what, point), busy(point, what), point[what])
        ]
        lines.append(row(point["hosts"], int(point["procs"]), *cells))
    cluster = model.Cluster(made, LATENCY)
    lines += ["", "| hosts | procs | levels | one cast, ms | casts/s | call, ms |", "|---" * 6 + "|"]
    for hosts in (16, 100, 1000, 10_000):
        cast, each, call = cluster.cast(hosts, 8), cluster.casts(hosts, 8), cluster.call(hosts, 8)
        levels = len(cluster.levels(hosts))
        lines.append(
            row(f"{hosts:,}", f"{hosts * 8:,}", levels, short(cast * 1e3), f"{1 / each:,.0f}", short(call * 1e3))
        )
    return lines


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


LATENCY = 100e-6  # between two machines, wake-up included


def plot(record: Mapping[str, Any], path: Path) -> None:
    """Calls, casts, spawns and the client's part, against the number of processes; both axes logarithmic."""
    pyplot = pyplot_for("scale")

    points = sorted((p for p in record["hosts_points"] if "width" not in p), key=lambda p: (p["procs"], p["hosts"]))
    largest = {point["procs"]: point for point in points}  # the most hosts for that many processes
    procs = list(largest)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(7.2, 3.0), layout="constrained")
    for name, label in (("spawn", "spawn to first answer"), ("call", "call, p50"), ("cast", "broadcast, in a row")):
        left.loglog(procs, [point[name] * 1e3 for point in largest.values()], "o-", ms=3, lw=1.2, label=label)
    if record.get("cluster_points"):
        memory = record["cluster_points"]
        left.loglog(
            [p["procs"] for p in memory],
            [p["call"] * 1e3 for p in memory],
            "x--",
            ms=4,
            lw=0.8,
            label="call, in memory",
        )
    left.set(title="elapsed, two cores for everything" if CORES == 2 else "elapsed", xlabel="processes", ylabel="ms")
    for name, label in (
        ("cast_client_cpu", "broadcast: client"),
        ("cast_agent_cpu", "broadcast: its agent"),
        ("call_client_cpu", "call: client"),
        ("call_agent_cpu", "call: its agent"),
    ):
        right.loglog(
            procs, [max(point[name], 1e-6) * 1e6 for point in largest.values()], "o-", ms=3, lw=1.2, label=label
        )
    right.set(title="the client's side, processor time", xlabel="processes", ylabel="µs")
    for axes in (left, right):
        axes.grid(True, which="major", lw=0.3, alpha=0.6)
        axes.legend(frameon=False, fontsize=7)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    sys.exit(main())
