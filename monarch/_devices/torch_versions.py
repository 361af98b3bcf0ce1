"""Differences between the releases of torch that are supported: everything else is written for the newest.

A function each, with what the newest does first. Importing it loads torch, and is an ImportError where that is too old.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.utils._pytree import TreeSpec

OLDEST = (2, 8)  # of the releases that the tests were run on; pyproject.toml has it as well


def confirm(version: str) -> None:
    """ImportError for a version of torch that is older than OLDEST."""
    if release(version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(
            f"torch {version} is too old: monarch needs {oldest} or newer, here and in the workers (host "
            f"{socket.gethostname()}, interpreter {sys.executable}): pip install 'torch>={oldest}' there",
            name="torch",
        )


def release(version: str) -> tuple[int, int]:
    """Returns major and minor number of a version such as "2.8.0+cu128"."""
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


def children(spec: TreeSpec) -> Sequence[TreeSpec]:
    """Returns the specs of a container's values."""
    # 2.8 has the attribute only; 2.13 warns of it.
    found: Sequence[TreeSpec] = spec.children() if hasattr(spec, "children") else spec.children_specs
    return found


def register_group(group: Any, backend: str, store: Any, name: str, devices: str, ranks: dict[int, int]) -> None:
    """Makes a group known to torch.distributed by its name."""
    from torch.distributed import distributed_c10d as c10d

    if hasattr(c10d, "_register_pg_in_world"):
        c10d._register_pg_in_world(group, backend, store, c10d.GroupName(name), devices, ranks)
        return
    # 2.8 has no function for it, and names are plain.
    world = c10d._world
    world.pg_map[group] = (backend, store)
    world.pg_names[group] = name
    world.pg_backend_config[group] = devices
    c10d._register_process_group(name, group)
    world.pg_group_ranks[group] = ranks
    world.tags_to_pg.setdefault(f"ptd:{name}", []).append(group)
    world.pg_to_tag[group] = f"ptd:{name}"


def scatters(tensor: torch.Tensor, reduction: Any) -> bool:
    """Returns whether a reduce-scatter of the tensor does this reduction. gloo's sums in 2.8, whatever it is asked for; in
    2.13 it does not. None between them was run."""
    import torch.distributed as dist

    return tensor.device.type != "cpu" or reduction == dist.ReduceOp.SUM or release(torch.__version__) >= (2, 13)


confirm(torch.__version__)
