"""Drawings of Futures in notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch import _html

if TYPE_CHECKING:
    from monarch._runtime.future import Source


def draw(source: Source | None, value: tuple[Any] | None, error: BaseException | None) -> str | None:
    """Draws a Future: its `source` while nobody has observed it, then the value in a tuple, or the error. None where that
    fails."""
    return _html.drawn(lambda: _draw(source, value, error))


def _draw(source: Source | None, value: tuple[Any] | None, error: BaseException | None) -> str:
    if error is not None:
        return _html.future("", f"failed: {type(error).__name__}", None, _result(error))
    if value is not None:
        return _html.future("", f"done: {type(value[0]).__name__}", None, _result(value[0]))
    if source is None:
        return _html.future("", "used up")
    if source.ready:
        return _html.future(source.of(), "ready; .get() or await gives the result")
    return _html.future(source.of(), f"pending{source.progress()}", source.missing())


def _result(of: Any) -> str:
    """Returns the drawing of what a Future gave. Only our own are taken: they are bounded, and do nothing."""
    kind = type(of)
    ours = kind.__module__.partition(".")[0] == "monarch" and hasattr(kind, "_repr_html_")
    return (of._repr_html_() or "") if ours else ""
