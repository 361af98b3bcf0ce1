"""Training that survives the death of a rank: all ranks begin again, from the last checkpoint."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

CHECKPOINT = Path("checkpoint.pt")
FIRST_TIME = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net, step = torch.nn.Linear(4, 1), 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT)
        net.load_state_dict(state["net"])
        step = state["step"]
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    while step < 100:
        if step == 50 and rank == 1 and FIRST_TIME:
            os._exit(1)  # the accident
        dice = torch.Generator().manual_seed(1000 * step + rank)  # so that a step can be repeated
        x = torch.randn(32, 4, generator=dice)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0 and step % 10 == 0:
            part = CHECKPOINT.with_suffix(".part")
            torch.save({"net": net.state_dict(), "step": step}, part)
            part.replace(CHECKPOINT)
    if rank == 0:
        print(step, "steps", [round(weight, 2) for weight in net.weight.detach().flatten().tolist()])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
