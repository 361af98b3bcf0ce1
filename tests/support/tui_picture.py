"""Draws docs/pictures/tui.svg anew: the screen of a real program with a rank that is stuck.

PYTHONPATH=. python tests/support/tui_picture.py [FILE]
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from monarch._mesh.process.client import client
from monarch.actor import Actor, ActorMesh, current_rank, endpoint, shutdown_context, this_host
from monarch.admin.programs import program_at
from monarch.admin.screen.app import MeshAdmin
from monarch.admin.screen.header import Options
from monarch.admin.screen.sources import SocketSource

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "tui.svg"
_PATIENCE = 60.0  # seconds


class Loader(Actor):
    @endpoint
    def batch(self) -> None:
        if current_rank().rank == 1:
            time.sleep(3600)


class Trainer(Actor):
    def __init__(self, loaders: ActorMesh[Loader]) -> None:
        self._loaders = loaders

    @endpoint
    def step(self) -> None:
        self._loaders.batch.call().get()

    @endpoint
    def evaluate(self) -> None:
        raise ValueError("the loss is NaN")


def stuck() -> MeshAdmin:
    """The screen of a program of which one loader hangs, all trainers wait for it, and one actor has failed."""
    host = this_host()
    loaders = host.spawn_procs({"gpus": 2}, name="loaders").spawn("loader", Loader)
    procs = host.spawn_procs({"gpus": 3}, name="trainers")
    trainers = procs.spawn("trainer", Trainer, loaders)
    procs.slice(gpus=0).spawn("evaluator", Trainer, loaders).evaluate.broadcast()
    trainers.step.broadcast()
    running = client()
    assert running is not None
    program = program_at(running.directory)
    assert program is not None
    return MeshAdmin(SocketSource(program), Options(refresh=0.5, tree=True))


async def draw(app: MeshAdmin) -> str:
    async with app.run_test(size=(150, 34)) as pilot:

        async def until(true: Callable[[], bool]) -> None:
            async with asyncio.timeout(_PATIENCE):
                while not true():
                    await pilot.pause(0.1)

        def complete() -> bool:
            for reference, node in app.state.nodes.items():
                if node.properties.Proc is not None:
                    app.state.expand(reference)
            rows = app.state.rows()
            failed = any(row.kind == "failed" and "evaluator" in row.label for row in rows)
            return failed and sum(row.stuck > 4 for row in rows) >= 8

        await until(complete)
        stuck_one = next(row for row in app.state.rows() if row.label == "trainer[1]")
        app.state.jump(stuck_one.reference)
        app.action_move(0)
        await pilot.pause(1.5)
        return app.export_screenshot(title="monarch tui", simplify=True)


def cleaned(svg: str) -> str:
    """Without fonts of other sites, and without trailing blanks."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def main() -> None:
    import monarch.actor

    monarch.actor.unhandled_fault_hook = lambda failure: None  # type: ignore[assignment]
    svg = cleaned(asyncio.run(draw(stuck())))
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    target.parent.mkdir(exist_ok=True)
    target.write_text(svg)
    shutdown_context().get()


if __name__ == "__main__":
    main()
