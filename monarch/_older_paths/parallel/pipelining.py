"""Pipelines over distributed tensors: not here."""

raise ImportError(
    "monarch.parallel.pipelining is not here: use torch.distributed.pipelining on the ranks of an SPMDActor"
)
