"""Logging in the processes of a mesh."""

from __future__ import annotations

import logging
from typing import Any

from monarch.tensor.remote.remote_function import remote

logger = logging.getLogger("monarch.remote")


@remote(propagate="inspect")
def log_remote(*args: Any, level: int = logging.WARNING, **kwargs: Any) -> None:
    """Logs in every process of the mesh: `message, *values` as `logging.Logger.log`; keywords too. Logger
    `monarch.remote`."""
    logger.log(level, *args, **kwargs)


@remote(propagate="inspect")
def set_logging_level_remote(level: int) -> None:
    """Sets the level of the root logger and of `monarch.remote` in every process of the mesh."""
    logging.getLogger().setLevel(level)
    logger.setLevel(level)
