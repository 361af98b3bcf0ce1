"""Curves of a training run: not here."""

raise ImportError(
    "monarch.tensorboard is not here: use torch.utils.tensorboard.SummaryWriter in the program, or in one actor"
)
