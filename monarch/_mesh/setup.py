"""The actor that runs a proc mesh's bootstrap function, before any other actor of the mesh is constructed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from monarch._mesh.actor import Actor
from monarch._mesh.endpoint import endpoint
from monarch._runtime.context import here


class SetupActor(Actor):
    """What the function spawns belongs to this actor."""

    _is_system_actor = True

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    @endpoint
    async def setup(self) -> None:
        """Runs the function, with no loop visible when it is a plain one, and opens the gate for other actors."""
        try:
            if inspect.iscoroutinefunction(self._function):
                await self._function()
            else:
                self.run_plain()
        except BaseException as exc:
            here().mesh.open_gate(exc)
            raise
        here().mesh.open_gate(None)

    def run_plain(self) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        try:
            self._function()
        finally:
            asyncio._set_running_loop(loop)
