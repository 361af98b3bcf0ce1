"""The actor that sets the level of the root logger in its process."""

from __future__ import annotations

import logging

from monarch._mesh.actors.actor import Actor
from monarch._mesh.actors.endpoint import endpoint


class LogLevel(Actor):
    _is_system_actor = True

    def __init__(self, level: int) -> None:
        self._level = level

    @endpoint
    def apply(self) -> None:
        logging.getLogger().setLevel(self._level)
