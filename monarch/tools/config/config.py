"""The configuration of a server, as older launch scripts say it before they create it."""

from __future__ import annotations

import dataclasses
from typing import Any

from monarch.tools.config.workspace import Workspace


@dataclasses.dataclass
class Config:
    """`scheduler`: process, slurm or kubernetes; `scheduler_args`: arguments of that job's class; `appdef`: anything
    whose `roles` have `name` and `num_replicas`, each a mesh of hosts (torchx's AppDef, or mesh specs in a ServerSpec). With
    `dryrun` nothing is started."""

    scheduler: str = "process"
    scheduler_args: dict[str, Any] = dataclasses.field(default_factory=dict)
    workspace: Workspace | None = None
    dryrun: bool = False
    appdef: Any = None
