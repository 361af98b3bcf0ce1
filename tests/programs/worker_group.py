"""A worker group: each rank's process starts by a command of its own, several classes live in one process, and one endpoint
dispatches all their methods, split over the ranks and put together again as the methods say."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from monarch._src.actor.actor_mesh import Actor
from monarch._src.actor.endpoint import endpoint
from monarch._src.actor.host_mesh import BootstrapCommand, default_bootstrap_cmd, this_host

RANKS = 2


def dispatched(how: str) -> Callable[[Any], Any]:
    """Says how a method's arguments reach the ranks: `all`, `split`, or rank `zero` alone."""

    def mark(method: Any) -> Any:
        method.dispatched = how
        return method

    return mark


class Worker(Actor):
    """The only actor of a process: makes objects, and calls any method of any of them."""

    def __init__(self, classes: dict[str, tuple[type, tuple[Any, ...]]]) -> None:
        self.objects = {name: made(*args) for name, (made, args) in classes.items()}

    @endpoint
    def __monarch_call__(self, name: str, method: str, per_rank: list[tuple[Any, ...]]) -> Any:
        rank = int(os.environ["RANK"])
        if rank >= len(per_rank):
            return None
        return getattr(self.objects[name], method)(*per_rank[rank])


class RemoteMethod:
    """A method of a class that lives in all ranks."""

    def __init__(self, mesh: Any, name: str, method: str, how: str) -> None:
        self.mesh, self.name, self.method, self.how = mesh, name, method, how

    def __call__(self, *args: Any) -> Any:
        if self.how == "split":
            size = len(args[0]) // RANKS
            per_rank = [tuple(arg[rank * size : (rank + 1) * size] for arg in args) for rank in range(RANKS)]
        else:
            per_rank = [args] * (1 if self.how == "zero" else RANKS)
        answers = list(self.mesh.__monarch_call__.call(self.name, self.method, per_rank).get().values())
        if self.how == "split":
            return [value for part in answers for value in part]
        return answers[0] if self.how == "zero" else answers


class RemoteObject:
    """The methods of one class, by their names."""

    def __init__(self, mesh: Any, name: str, of: type) -> None:
        for method, function in vars(of).items():
            if how := getattr(function, "dispatched", ""):
                setattr(self, method, RemoteMethod(mesh, name, method, how))


class Model:
    """A model that all ranks train, by a process group that the environment describes."""

    def __init__(self, size: int) -> None:
        import torch

        self.weight = torch.zeros(size)

    @dispatched("all")
    def initialize(self) -> int:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        return dist.get_rank()

    @dispatched("split")
    def forward(self, inputs: list[float]) -> list[float]:
        return [float(self.weight[0]) + value for value in inputs]

    @dispatched("split")
    def step(self, gradients: list[float]) -> list[float]:
        import torch
        import torch.distributed as dist

        mean = torch.tensor([sum(gradients)])
        dist.all_reduce(mean)
        self.weight -= mean
        return [float(self.weight[0])]

    @dispatched("zero")
    def checkpoint(self) -> list[float]:
        return self.weight.tolist()

    @dispatched("all")
    def finish(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()


class Reward:
    """Another class in the same processes."""

    @dispatched("split")
    def score(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    @dispatched("all")
    def environment(self) -> tuple[str, str, str]:
        return os.environ["RANK"], os.environ["GROUP"], os.environ.get("CUDA_VISIBLE_DEVICES", "")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def command_of(port: int) -> Callable[[Any], BootstrapCommand]:
    """Returns what makes the command of a rank: the usual one, with variables that `env` sets before it."""
    plain = default_bootstrap_cmd()
    assert plain.program == sys.executable

    def command(point: Any) -> BootstrapCommand:
        variables = {
            "RANK": point.rank, "LOCAL_RANK": point["gpus"], "WORLD_SIZE": point.extent.nelements,
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "CUDA_VISIBLE_DEVICES": point["gpus"],
        }  # fmt: skip
        words = [f"{name}={value}" for name, value in variables.items()]
        main = ["-m", "monarch._src.actor.bootstrap_main"]
        return BootstrapCommand("/usr/bin/env", None, [*words, sys.executable, *main], {"GROUP": "actors"})

    return command


def main() -> None:
    hosts = this_host()
    procs = hosts.spawn_procs({"gpus": RANKS}, bootstrap_command=command_of(free_port()))
    mesh = procs.spawn("workers", Worker, {"actor": (Model, (3,)), "reward": (Reward, ())})
    mesh._proc_mesh, procs._gpu_ids, hosts._host_id = procs, list(range(RANKS)), "host"
    pools = {procs: "actors"}
    assert pools[mesh._proc_mesh] == "actors"

    model: Any = RemoteObject(mesh, "actor", Model)
    reward: Any = RemoteObject(mesh, "reward", Reward)
    assert model.initialize() == [0, 1]
    assert reward.environment() == [("0", "actors", "0"), ("1", "actors", "1")]
    assert reward.score(["a", "bb", "ccc", "dddd"]) == [1, 2, 3, 4]
    assert model.forward([1.0, 2.0]) == [1.0, 2.0]
    assert model.step([0.25, 0.5]) == [-0.75, -0.75]
    assert model.forward([1.0, 2.0]) == [0.25, 1.25]
    assert model.checkpoint() == [-0.75] * 3
    model.finish()
    try:
        model.forward(["text", "text"])
    except Exception as error:
        assert "TypeError" in str(error)
    else:
        raise AssertionError("a text was added to a number")
    mesh._proc_mesh.stop().get()
    print("ok")


if __name__ == "__main__":
    main()
