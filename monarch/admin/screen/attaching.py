"""Attaching the debugger to a rank: which breakpoint it stands at, and how to get it there where it stands at none. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from monarch.admin.screen.ranks import RankRow


class StoppedEndpoint(msgspec.Struct, frozen=True):
    """An endpoint at a breakpoint, as the debugger tells of it: `rank` is that of the mesh it was called on, which may be a
    part of its own; `address` is that of its process."""

    actor_name: str
    rank: int
    function: str = ""
    lineno: int = 0
    address: str = ""


def stopped_in(address: str, stopped: Iterable[StoppedEndpoint]) -> StoppedEndpoint | None:
    """Returns the first of them that stands in the process at that address; None when none does."""
    return next((each for each in stopped if each.address == address), None)


def command(pid: int, at: StoppedEndpoint) -> list[str]:
    """Returns what the interpreter runs to attach to it, on the terminal of the screen."""
    return ["-m", "monarch", "debug", "attach", at.actor_name, str(at.rank), "--pid", str(pid)]


def how(row: RankRow, pid: int) -> str:
    """Says how a rank that stands at no breakpoint is attached to."""
    if not row.group:
        return "the client is your own program, which its own terminal debugs (python -m pdb): b attaches to its ranks"
    mesh = row.known_as[0][0] if row.known_as else row.mesh
    return (
        f"{row.name} stands at no breakpoint: b attaches once its endpoint has come to breakpoint(), or has raised after "
        f"`monarch debug --pid {pid} --on-exception`; an editor attaches at any time, by `monarch debug --pid {pid} "
        f"--dap {row.rank}{f' --mesh {mesh}' if mesh else ''}`"
    )
