"""Draws docs/pictures/tui*.svg anew: the screen of a real program with a rank that is stuck: its ranks, its curves, its tree.

PYTHONPATH=. python tests/support/tui_picture.py [FOLDER]

What would tell of the machine that draws (its name, its user, folders) is replaced.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

import monarch.metrics
from monarch._mesh.process.client import client
from monarch.actor import Actor, ActorMesh, current_rank, endpoint, shutdown_context, this_host
from monarch.admin.payloads import NodePayload
from monarch.admin.programs import program_at
from monarch.admin.screen.app import MeshAdmin
from monarch.admin.screen.header import Options
from monarch.admin.screen.overlay import Overlay
from monarch.admin.screen.sources import SocketSource

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
SIZE = (120, 30)
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
        rank = current_rank().rank
        for step in range(200):
            loss = 3.2 / (1 + 0.05 * step) + 0.04 * rank + 0.05 * ((step * 7 + rank * 3) % 5)
            monarch.metrics.log(step=step, loss=loss, learning_rate=1e-3 * (1 - step / 200))
        self._loaders.batch.call().get()

    @endpoint
    def evaluate(self) -> None:
        raise ValueError("the loss is NaN")


class Anywhere(SocketSource):
    """A program of a machine that nobody knows."""

    def nodes(self) -> list[NodePayload]:
        return msgspec.json.decode(self._renamed(msgspec.json.encode(super().nodes())), type=list[NodePayload])

    def node(self, reference: str) -> NodePayload:
        found = next(node for node in super().nodes() if self._renamed(node.identity.encode()).decode() == reference)
        return msgspec.json.decode(self._renamed(msgspec.json.encode(found)), type=NodePayload)

    def _renamed(self, text: bytes) -> bytes:
        text = text.replace(f'"{socket.gethostname()}"'.encode(), b'"node1"')
        text = re.sub(rb'"started_by":"[^"]*"', b'"started_by":"you"', text)
        text = re.sub(rb'"command":"[^"]*"', b'"command":"python train.py"', text)
        text = re.sub(rb"[^\"]*/tui_picture.py", b"train.py", text)
        return re.sub(rb"unix:/[^/\"]*/[^/\"]*/[^/\"@,]*", b"tcp://node1:26600", text)


def stuck(folder: str) -> MeshAdmin:
    """The screen of a program of which one loader hangs, all trainers wait for it, and one actor has failed."""
    monarch.metrics.keep(folder)
    host = this_host()
    loaders = host.spawn_procs({"gpus": 2}, name="loaders").spawn("loader", Loader)
    procs = host.spawn_procs({"gpus": 4}, name="trainers")
    trainers = procs.spawn("trainer", Trainer, loaders)
    procs.slice(gpus=0).spawn("evaluator", Trainer, loaders).evaluate.broadcast()
    trainers.step.broadcast()
    running = client()
    assert running is not None
    program = program_at(running.directory)
    assert program is not None
    return MeshAdmin(Anywhere(program), Options(refresh=0.5))


async def draw(app: MeshAdmin) -> dict[str, str]:
    """Returns the pictures by their names."""
    found: dict[str, str] = {}
    async with app.run_test(size=SIZE) as pilot:

        async def until(true: Callable[[], bool]) -> None:
            async with asyncio.timeout(_PATIENCE):
                while not true():
                    await pilot.pause(0.1)

        async def take(name: str) -> None:
            await pilot.pause(1.5)
            found[name] = cleaned(app.export_screenshot(title="monarch tui", simplify=True))

        await until(lambda: bool(app.findings) and sum(row.seconds > 4 for row in app.ranks.all) >= 4)
        await take("tui-ranks.svg")
        await pilot.press("m")
        await until(lambda: isinstance(app.screen, Overlay) and "at step 199" in app.screen.shown)
        await take("tui-metrics.svg")
        await pilot.press("escape", "t")
        for reference, node in app.state.nodes.items():
            if node.properties.Proc is not None:
                app.state.expand(reference)
        app.state.jump(next(row for row in app.state.rows() if row.label == "trainer[1]").reference)
        app.action_move(0)
        await take("tui.svg")
    return found


def cleaned(svg: str) -> str:
    """Without fonts of other sites, and without trailing blanks."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def main() -> None:
    import monarch.actor

    monarch.actor.unhandled_fault_hook = lambda failure: None  # type: ignore[assignment]
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, svg in asyncio.run(draw(stuck(folder))).items():
            (target / name).write_text(svg)
        shutdown_context().get()


if __name__ == "__main__":
    main()
