"""The colours of the screen."""

from __future__ import annotations

from typing import NamedTuple


class Palette(NamedTuple):
    background: str
    panel: str
    text: str
    dim: str
    accent: str
    selected: str
    good: str
    warning: str
    error: str
    stopped: str
    system: str
    dark: bool


THEMES = {
    "nord": Palette(
        background="#2e3440",
        panel="#3b4252",
        text="#d8dee9",
        dim="#7b88a1",
        accent="#88c0d0",
        selected="#434c5e",
        good="#a3be8c",
        warning="#ebcb8b",
        error="#d57780",
        stopped="#b48ead",
        system="#81a1c1",
        dark=True,
    ),
    "doom-nord-light": Palette(
        background="#e5e9f0",
        panel="#d8dee9",
        text="#3b4252",
        dim="#6b768a",
        accent="#2a6f97",
        selected="#c2d0e7",
        good="#3f7a4d",
        warning="#9a5b00",
        error="#a3313d",
        stopped="#7b4f7a",
        system="#3b6ea8",
        dark=False,
    ),
}
DEFAULT = "nord"
