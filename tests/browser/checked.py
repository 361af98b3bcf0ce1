"""Looks at a page for what keeps people from reading or using it; see page_faults.js."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FAULTS = (Path(__file__).parent / "page_faults.js").read_text()
# What listens to clicks, which a page cannot be asked for. To run before the page's own scripts.
CLICKED = """window.clickedElements = new Set();
const listen = EventTarget.prototype.addEventListener;
EventTarget.prototype.addEventListener = function (name, ...rest) {
  if (name === "click" && this instanceof Element) window.clickedElements.add(this);
  return listen.call(this, name, ...rest);
};"""
DESK, PHONE = (1280, 720), (390, 844)


def watch_clicks(page: Any) -> None:
    """Lets pages that are opened from now on say what listens to clicks."""
    page.add_init_script(CLICKED)


def faults(page: Any, *looks: tuple[tuple[int, int], str]) -> list[str]:
    """A line for each fault that the open page has in each of these looks: a size and colours. It is not loaded again."""
    found: list[str] = []
    for (width, height), colours in looks:
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=colours)
        found += [f"{colours}, {width}: {fault}" for fault in page.evaluate(FAULTS, width)]
    return found
