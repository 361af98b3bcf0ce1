"""The page that `monarch status` shows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from monarch.admin.status import duration, size

if TYPE_CHECKING:
    from monarch.tools.verbs.host_status import HostFacts

_MOST = 64  # processes of a host, and waits, that are shown; then how many more there are
_OURS = ("status.look",)


def page(title: str, hosts: Sequence[tuple[str, HostFacts | str]], graph: Any) -> str:
    """`hosts`: of each its place in the job, and what it says or why it does not. `graph`: a WaitGraph."""
    running: dict[tuple[str, int], list[Any]] = {}
    for handler in graph.handlers:
        running.setdefault((handler.host, handler.pid), []).append(handler)
    lines = [f"{title}, {len(hosts)} host{'s' if len(hosts) != 1 else ''}"]
    for place, facts in hosts:
        if isinstance(facts, str):
            lines.append(f"{place}  DOES NOT ANSWER: {facts}")
            continue
        used = facts.memory - facts.available
        lines.append(
            f"{place}  {facts.name}  {len(facts.processes)} procs, memory {size(used)} of {size(facts.memory)} used, "
            f"load {facts.load:.1f}"
        )
        for one in facts.processes[:_MOST]:
            also = f" in {one.count} processes" if one.count > 1 else ""
            lines.append(f"    pid {one.pid}  {size(one.resident)}{also}  {one.processor:.0f} s of processor time")
            lines += [f"        {_handler(handler)}" for handler in running.get((facts.name, one.pid), [])]
        if len(facts.processes) > _MOST:
            lines.append(f"    and {len(facts.processes) - _MOST} more")
    waits = [edge for edge in graph.edges if not any(ours in str(edge) for ours in _OURS)]
    if waits:
        lines.append(f"who waits: {len(waits)}")
        lines += [f"    {edge}" for edge in waits[:_MOST]]
    if graph.silent:
        lines.append(f"processes that did not answer: {len(graph.silent)}")
        lines += [f"    {address}: {why}" for address, why in list(graph.silent.items())[:_MOST]]
    return "\n".join(lines)


def _handler(handler: Any) -> str:
    queued = f", {handler.queued} messages wait" if handler.queued else ""
    return f"{handler.who} runs {handler.endpoint}() for {duration(handler.seconds)}{queued}"
