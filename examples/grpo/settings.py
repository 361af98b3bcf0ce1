"""What the programs of this folder have in common on the command line: the size of the task, the policy and a batch."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from policy import Policy, own_device
from task import Sorting

FLAGS: dict[str, tuple[type, str]] = {
    "digits": (int, "to sort"),
    "base": (int, "how many different digits there are"),
    "width": (int, "of the policy"),
    "prompts": (int, "of a batch"),
    "group": (int, "answers to each prompt"),
    "rate": (float, "learning rate"),
    "seed": (int, "of weights, prompts and answers"),
}


@dataclass(frozen=True)
class Settings:
    digits: int = 4
    base: int = 10
    width: int = 48
    prompts: int = 16
    group: int = 16
    rate: float = 2e-3
    seed: int = 0

    @property
    def task(self) -> Sorting:
        return Sorting(self.digits, self.base)

    def policy(self) -> Policy:
        policy: Policy = Policy(self.task.vocabulary, self.task.length, self.width).to(own_device())
        return policy

    @staticmethod
    def add_flags(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--small", action="store_true", help="a task that is learned in seconds")
        for name, (kind, help) in FLAGS.items():
            parser.add_argument(f"--{name}", type=kind, help=f"{help} (default {getattr(Settings, name)})")

    @staticmethod
    def of(args: argparse.Namespace) -> Settings:
        """What the command line says; where it says nothing, the defaults or those of `--small`."""
        start = SMALL if args.small else Settings()
        return replace(start, **{name: value for name in FLAGS if (value := getattr(args, name)) is not None})


SMALL = Settings(digits=3, base=6, width=32, group=8, rate=3e-3)
