"""FSDP2: parameters are shards, gathered for each layer; every rank saves its own shards and loads them again."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(3)), nn.Linear(16, 1))
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(layers, mesh=mesh)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    dice = torch.Generator().manual_seed(rank)
    for _ in range(20):
        x = torch.randn(32, 16, generator=dice)
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    dcp.save(net.state_dict(), checkpoint_id=folder[0])
    again = model()
    state = again.state_dict()
    dcp.load(state, checkpoint_id=folder[0])
    again.load_state_dict(state)
    x = torch.ones(1, 16)
    same = torch.equal(net(x), again(x))
    dist.all_reduce(loss := loss.detach())
    if rank == 0:
        print(f"loss {loss.item() / dist.get_world_size():.5f}, the same after a checkpoint: {same}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
