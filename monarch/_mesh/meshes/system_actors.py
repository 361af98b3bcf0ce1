"""The runtime's own actors in the processes of a mesh: one prepares them, one sets the log level."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from monarch._mesh.actors.actor import Actor
from monarch._mesh.actors.endpoint import endpoint
from monarch._mesh.meshes import replacements
from monarch._runtime.context import here
from monarch._runtime.functions import is_async


class SetupActor(Actor):
    """Runs the bootstrap function of a mesh in its process, before any other actor there is constructed. What the function
    spawns belongs to this actor."""

    _is_system_actor = True

    def __init__(self, function: Callable[[], Any] | None, replaced: list[replacements.Pair]) -> None:
        self._function = function
        self._replaced = replaced

    @endpoint
    async def setup(self) -> None:
        """Runs the function, with no loop visible when it is a plain one, and opens the gate for other actors."""
        try:
            replacements.inherit(self._replaced)
            if self._function is not None:
                if is_async(self._function):
                    await self._function()
                else:
                    self.run_plain(self._function)
        except BaseException as exc:
            here().mesh.residents.open_gate(exc)
            raise
        here().mesh.residents.open_gate(None)

    def run_plain(self, function: Callable[[], Any]) -> None:
        import asyncio  # loaded already: this actor has a loop

        from monarch._mesh.actors.async_behaviour import hidden_loop

        with hidden_loop(asyncio.get_running_loop()):
            function()


class LogLevel(Actor):
    """Sets the level of the root logger in its process."""

    _is_system_actor = True

    def __init__(self, level: int) -> None:
        self._level = level

    @endpoint
    def apply(self) -> None:
        logging.getLogger().setLevel(self._level)
