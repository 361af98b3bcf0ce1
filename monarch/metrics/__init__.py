"""The numbers that a program logs of itself, such as its loss, from any rank: `monarch.metrics.log(step=1, loss=0.5)`.
See docs/how-to/metrics.md."""

from __future__ import annotations

from monarch.metrics.kept import keep
from monarch.metrics.logged import log
from monarch.metrics.sinks import to_file, to_opentelemetry, to_tensorboard, to_wandb

__all__ = ["keep", "log", "to_file", "to_opentelemetry", "to_tensorboard", "to_wandb"]
