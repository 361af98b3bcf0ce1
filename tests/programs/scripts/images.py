"""Classification of images: a sampler gives each rank its part, meters are averaged over ranks, the best model is kept."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
parser.add_argument("--dist-backend", default="gloo")


class AverageMeter:
    """A mean over all that was seen, on all ranks."""

    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def update(self, value: float, count: int) -> None:
        self.sum += value * count
        self.count += count

    def all_reduce(self) -> float:
        both = torch.tensor([self.sum, self.count], dtype=torch.float64)
        dist.all_reduce(both)
        return (both[0] / both[1]).item()


def images(count: int, seed: int) -> TensorDataset:
    """Bright corners: which of four is the brightest says the class."""
    dice = torch.Generator().manual_seed(seed)
    classes = torch.randint(4, (count,), generator=dice)
    pictures = torch.rand(count, 1, 8, 8, generator=dice)
    for number in range(4):
        row, column = 4 * (number // 2), 4 * (number % 2)
        pictures[classes == number, :, row : row + 4, column : column + 4] += 0.5
    return TensorDataset(pictures, classes)


def run(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer | None) -> tuple[float, float]:
    losses, right = AverageMeter(), AverageMeter()
    model.train(optimizer is not None)
    for pictures, classes in loader:
        with torch.set_grad_enabled(optimizer is not None):
            found = model(pictures)
            loss = nn.functional.cross_entropy(found, classes)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.update(loss.item(), len(classes))
        right.update((found.argmax(1) == classes).float().mean().item(), len(classes))
    return losses.all_reduce(), right.all_reduce()


def main() -> None:
    given = parser.parse_args()
    dist.init_process_group(given.dist_backend, init_method="env://")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4))
    model = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(net) if torch.cuda.is_available() else net)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    training, validation = images(512, 1), images(128, 2)
    sampler = DistributedSampler(training)
    loader = DataLoader(training, batch_size=given.batch_size // ranks, sampler=sampler, num_workers=1)
    checking = DataLoader(validation, batch_size=32, sampler=DistributedSampler(validation, shuffle=False))
    best = 0.0
    for epoch in range(given.epochs):
        sampler.set_epoch(epoch)
        loss, _ = run(model, loader, optimizer)
        schedule.step()
        _, right = run(model, checking, None)
        if rank == 0:
            if right > best:
                torch.save({"epoch": epoch, "state_dict": model.module.state_dict()}, "best.pt")
            print(f"epoch {epoch}: loss {loss:.3f}, right {right:.3f}")
        best = max(best, right)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
