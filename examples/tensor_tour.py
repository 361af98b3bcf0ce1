"""A tour of distributed tensors: one script, tensors on every process of a mesh.

    python examples/tensor_tour.py

Everything below runs in this one process; the arithmetic runs in the others. Needs torch.
"""

import torch

import monarch
from monarch.actor import Actor, current_rank, endpoint, this_host


class Adder(Actor):
    """An ordinary actor, in the same processes as the tensors."""

    @endpoint
    def add(self, tensor: torch.Tensor) -> float:
        return float(tensor.sum()) + current_rank().rank


@monarch.remote(propagate=lambda x: x.new_empty(()))
def largest(x: torch.Tensor) -> torch.Tensor:
    """Runs in every process, on its local tensor: here values can be looked at."""
    return x.max() if x.max() > 0 else x.min()


def main() -> None:
    procs = this_host().spawn_procs({"hosts": 2, "gpus": 2})
    with procs.activate() as mesh:
        # Torch runs on all four processes. Nothing waits for them: shapes are known here, values are there.
        x = torch.ones(3, 4)
        y = (x @ x.T).relu() + 1
        print(f"1. {tuple(y.shape)} on {len(mesh)} processes; one of them has {monarch.inspect(y).tolist()[0]}")

        # Each process knows where it is, so that each can hold something else.
        mine = 10 * mesh.rank("hosts") + mesh.rank("gpus")
        print("2. host 1, gpu 0 has", monarch.inspect(mine, hosts=1, gpus=0).item())

        # Collectives along one dimension of the mesh, or several.
        print("3. sums over gpus:", [monarch.inspect(mine.reduce("gpus"), hosts=h, gpus=0).item() for h in range(2)])
        print("   all of them:", monarch.inspect(mine.reduce("gpus", "stack"), hosts=1, gpus=0).tolist())

        # What depends on values goes into a remote function.
        print(
            "4. the largest of the last one:", monarch.inspect(largest(mine + torch.zeros(2)), hosts=1, gpus=1).item()
        )

        # Modules, autograd and optimizers are those of torch: the graph is here, the work is there.
        net = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            loss = net(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            monarch.reduce_([p.grad for p in net.parameters()], reduction="avg")
            optimizer.step()
        print(f"5. a loss of {monarch.inspect(loss.detach()).item():.3f} after three steps")

        # Actors in the same processes get their own local tensors, in order with their other messages.
        adders = procs.spawn("adders", Adder)
        print("6. actors added:", list(adders.add.call(mine).get().values()))

        # A failure is told to whoever fetches what depends on it, with the line that issued it; the rest goes on.
        wrong = torch.zeros(2)[torch.tensor([5])]
        try:
            monarch.inspect(wrong + 1)
        except monarch.tensor.RemoteException as error:
            print("7. failed on rank", error.rank, "at:", error.controller_frames[-1].line)
        print("   and the others are fine:", monarch.inspect(y.sum()).item())
    procs.stop().get()


if __name__ == "__main__":
    main()
