"""How long would a training step take on a cluster that is not there?

    python examples/simulate_cluster.py [--hosts 1 4 16] [--trace trace.json]

The program is an ordinary one with distributed tensors. On a simulated mesh no operation runs: each rank has a clock that
estimates move, and its memory is counted. Needs torch, and neither processes nor GPUs.
"""

import argparse

import torch

import monarch
from monarch.simulator import RuntimeEstimator, Task, TimingType, by_communication

GPUS = 8
FLOPS = 200e12  # of one device, in matrix products
BANDWIDTH = 2e12  # bytes a second, everything else


def operation_ns(task: Task) -> float:
    """A roofline: what an operation computes or moves, whichever takes longer."""
    metas = [meta for meta in (*task.inputs, *task.outputs) if meta is not None]
    moved: int = sum(meta.shape.numel() * meta.dtype.itemsize for meta in metas)
    work = 0
    if task.name in ("aten.mm", "aten.addmm"):
        left, right = (meta.shape for meta in task.inputs[-2:] if meta is not None)
        work = 2 * left[0] * left[1] * right[1]
    return 1e9 * max(work / FLOPS, moved / BANDWIDTH) + 2_000


def set_timings(estimator: RuntimeEstimator) -> None:
    estimator.set_custom_timing({TimingType.CALL_FUNCTION: operation_ns, **by_communication()})


def step_on(hosts: int, trace: str | None) -> tuple[float, float]:
    """(Milliseconds, gigabytes of a device) of a data-parallel step, each rank with its own batch."""
    mode = "simulate" if trace else "quiet"
    sim = monarch.Simulator(hosts, GPUS, simulate_mode=mode, trace_path=trace or "trace.json", group_workers=True)
    set_timings(sim.estimator)
    with sim.mesh.activate():
        layers = [torch.nn.Linear(8192, 8192) for _ in range(4)]
        net = torch.nn.Sequential(*layers)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.empty(4096, 8192)
        sim.step()  # what came before is none of a step
        with monarch.set_meta("forward and backward"):
            net(x).square().mean().backward()
        with monarch.set_meta("gradients"):
            monarch.reduce_([p.grad for p in net.parameters()], reduction="avg")
        optimizer.step()
        seconds, megabytes = sim.step()
    sim.mesh.exit()
    return seconds * 1e3, megabytes / 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--trace", help="where a Chrome trace of the last one goes: trace_1.json is the step")
    args = parser.parse_args()
    for hosts in args.hosts:
        ms, gigabytes = step_on(hosts, args.trace if hosts == args.hosts[-1] else None)
        print(f"{hosts * GPUS:4d} ranks: {ms:6.2f} ms a step, {gigabytes:.2f} GB on each")


if __name__ == "__main__":
    main()
