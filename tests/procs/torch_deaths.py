"""kill -9 of ranks of a torch group, at any place and in any phase of training: every other rank's call raises an error that
names the dead, and training goes on after `healthy()` and `setup_torch_distributed()`. As a program, many rounds of it:

    python -m tests.procs.torch_deaths --rounds 200 --seed 1
    python -m tests.procs.torch_deaths --rounds 60 --command    of `monarch run`, which ends all ranks
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from monarch.actor import ProcMesh, RestartPolicy, SupervisionError, endpoint, setup_torch_distributed, this_host
from monarch.spmd import SPMDActor, torch_device_mesh
from tests.support.process_actors import Pid

PHASES = ("forward", "backward", "optimizer", "checkpoint", "setup", "fsdp", "pipeline", "mesh", "again", "spmd")
TIMEOUT = 120
_AT = 3  # the step in which it dies
_PROGRAM = """
import os, signal, sys, threading
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
try:
    for step in range(int(sys.argv[1])):
        if step == 3 and os.environ["RANK"] in sys.argv[2:]:
            os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()
        dist.all_reduce(torch.ones(8))
finally:
    dist.destroy_process_group()
"""

Enter = Callable[[str], None]  # called with the name of each phase at its beginning
MeshOf = Callable[..., Any]


def die(number: int) -> None:
    os.kill(os.getpid(), number)
    threading.Event().wait()


class Trainer(Pid):
    @endpoint
    def train(self, phase: str, dies: int, steps: int, after: float = 0.0) -> int:
        """So many steps of training. If it `dies`, it does so by that signal in that phase of one of them, so many seconds
        into it."""
        step, dying = 0, threading.Timer(after, die, (dies,))

        def enters(entered: str) -> None:
            if dies and step == _AT and entered == phase:
                if after:
                    dying.start()
                else:
                    die(dies)

        one_step = step_of(phase, enters, torch_device_mesh)
        try:
            while step < steps:
                step += 1
                one_step()
        finally:
            if dying.ident is not None:
                dying.join()
        return step

    @endpoint
    def wait(self) -> None:
        threading.Event().wait()


def step_of(phase: str, enters: Enter, mesh_of: MeshOf) -> Callable[[], None]:
    """Returns a step of training that has this phase. `mesh_of` makes a DeviceMesh of all ranks."""
    if phase == "fsdp":
        return fsdp(enters, mesh_of())
    if phase == "mesh":
        return device_mesh(enters, mesh_of)
    return pipeline(enters) if phase == "pipeline" else ddp(enters)


def ddp(enters: Enter) -> Callable[[], None]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    model.module.weight.register_hook(lambda grad: enters("backward"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        enters("forward")
        loss = model(torch.ones(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        enters("optimizer")
        optimizer.step()
        enters("checkpoint")
        dist.barrier()
        enters("setup")
        group = dist.new_group(list(range(dist.get_world_size())))
        dist.barrier(group)  # else one may close its connections while another still makes its own
        dist.destroy_process_group(group)

    return step


def fsdp(enters: Enter, mesh: Any) -> Callable[[], None]:
    import torch
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    for part in (*model, model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        output = model(torch.ones(4, 8))
        output.register_hook(lambda grad: enters("fsdp"))
        optimizer.zero_grad()
        output.square().mean().backward()
        optimizer.step()

    return step


def pipeline(enters: Enter) -> Callable[[], None]:
    import torch
    import torch.distributed as dist

    rank, last = dist.get_rank(), dist.get_world_size() - 1

    def step() -> None:
        value = torch.ones(8)
        if rank > 0:
            dist.recv(value, rank - 1)
        enters("pipeline")
        if rank < last:
            dist.send(value, rank + 1)
            dist.recv(value, rank + 1)
        if rank > 0:
            dist.send(value, rank - 1)

    return step


def device_mesh(enters: Enter, mesh_of: MeshOf) -> Callable[[], None]:
    import torch
    import torch.distributed as dist

    dims = {"dp": -1, "tp": 2} if dist.get_world_size() % 2 == 0 else {"dp": -1, "tp": 1}
    mesh = mesh_of(dims)

    def step() -> None:
        for name in dims:
            dist.all_reduce(torch.ones(8), group=mesh.get_group(name))
            enters("mesh")

    return step


def trainers_on(procs: ProcMesh) -> Any:
    with RestartPolicy(max_restarts=10_000):
        trainers: Any = procs.spawn("trainers", Trainer)
    trainers.healthy().get(TIMEOUT)
    return trainers


def round_of(
    procs: ProcMesh,
    trainers: Any,
    victims: Collection[int],
    phase: str,
    after: float = 0.0,
    number: int = signal.SIGKILL,
) -> float:
    """Sets the group up, has `victims` die by that signal, and trains on. Returns how many seconds after the first call of a
    dead rank had failed that of the last survivor did. AssertionError for an error that names no dead rank."""
    if phase == "spmd":
        return _round_of_programs(len(trainers), victims)
    setup_torch_distributed(procs).get(TIMEOUT)
    ranks, first = _ranks(trainers), "checkpoint" if phase == "again" else phase
    dies = [number if rank in victims else 0 for rank in range(len(ranks))]
    late = _deaths([one.train.call_one(first, dies[rank], 10_000, after) for rank, one in enumerate(ranks)], victims)
    trainers.healthy().get(TIMEOUT)
    if phase == "again":
        late = _death_while_set_up(procs, ranks[min(victims)], after)
        trainers.healthy().get(TIMEOUT)
    setup_torch_distributed(procs).get(TIMEOUT)
    assert trainers.train.call("", 0, 2).get(TIMEOUT).values() == [2] * len(ranks)
    return late


def _ranks(actors: Any) -> list[Any]:
    return [actors.flatten("rank").slice(rank=rank) for rank in range(len(actors))]


def _deaths(calls: list[Any], victims: Collection[int]) -> float:
    count, texts = len(calls), {}
    for rank in [*sorted(victims), *(rank for rank in range(count) if rank not in victims)]:
        try:
            calls[rank].get(TIMEOUT)
            raise AssertionError(f"rank {rank} has trained on")
        except Exception as exc:
            texts[rank] = str(exc)
        if rank == max(victims):
            died = time.monotonic()
    late = time.monotonic() - died
    named = [f"rank {rank} of this process's torch group of {count} ranks has died" for rank in victims]
    named.append(f"of this process's torch group of {count} ranks have died")
    for rank, text in texts.items():
        if rank not in victims:
            assert any(part in text for part in named), f"rank {rank} says: {text}"
    return late


def _death_while_set_up(procs: ProcMesh, victim: Any, after: float) -> float:
    """Kills a rank while the group is set up, or just after. Returns how long after word of its death the set-up ended."""
    pid = victim.pid.call_one().get(TIMEOUT)
    waiting = victim.wait.call_one()
    setting_up = setup_torch_distributed(procs)
    threading.Timer(after, os.kill, (pid, signal.SIGKILL)).start()
    with suppress(SupervisionError):
        waiting.get(TIMEOUT)
    died = time.monotonic()
    with suppress(SupervisionError, RuntimeError):
        setting_up.get(TIMEOUT)
    return time.monotonic() - died


def _round_of_programs(count: int, victims: Collection[int]) -> float:
    """A torchrun program, which sets up its group itself, in processes of its own."""
    procs = this_host().spawn_procs({"gpus": count})
    with RestartPolicy(max_restarts=10_000), tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(_PROGRAM)
        programs: Any = procs.spawn("programs", SPMDActor)
        ranks = _ranks(programs)
        dying = [str(program), "10000", *map(str, victims)]
        where = ranks[0].get_host_port.call_one(None).get(TIMEOUT)
        late = _deaths([one.main.call_one(*where, dying) for one in ranks], victims)
        programs.healthy().get(TIMEOUT)
        where = ranks[0].get_host_port.call_one(None).get(TIMEOUT)
        assert all(programs.main.call(*where, [str(program), "5"]).get(TIMEOUT).values())
    procs.stop().get(TIMEOUT)
    return late


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 3, 4, 8])
    parser.add_argument("--phases", nargs="*", choices=[*PHASES, "begin"])
    parser.add_argument("--command", action="store_true")
    given = parser.parse_args()
    chance = random.Random(given.seed)
    if given.command:
        from tests.procs import torch_run_deaths

        torch_run_deaths.rounds(given.rounds, given.ranks, given.phases or torch_run_deaths.PHASES, chance)
        return
    given.phases = given.phases or PHASES
    late, recovered = [], []
    for number, count in enumerate(given.ranks):
        procs = this_host().spawn_procs({"gpus": count})
        trainers = trainers_on(procs)
        for one in range(number, given.rounds, len(given.ranks)):
            phase = given.phases[one // len(given.ranks) % len(given.phases)]
            victims = chance.sample(range(count), chance.randrange(1, max(2, count // 2 + 1)))
            after = chance.choice([0.0, chance.uniform(0.0, 0.02)])
            began = time.monotonic()
            late.append(round_of(procs, trainers, victims, phase, after))
            recovered.append(time.monotonic() - began)
            print(f"{one}: {count} ranks, {victims} in {phase} +{after:.3f}: {late[-1]:.3f} s", flush=True)
        procs.stop().get(TIMEOUT)
    last = sorted(late)[int(0.95 * len(late))]
    print(f"{len(late)} rounds, seed {given.seed}: survivors {statistics.median(late):.3f} s after, 95 % {last:.3f} s, "
          f"at most {max(late):.3f} s; a round {statistics.median(recovered):.1f} s")  # fmt: skip


if __name__ == "__main__":
    main()
