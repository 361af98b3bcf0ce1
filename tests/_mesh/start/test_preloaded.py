"""Modules that the processes of a mesh do not take apart when they end."""

from __future__ import annotations

import sys

import pytest

from monarch._mesh.start import forkserver, preloaded


def test_those_of_every_process_are_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """To clear ours alone takes 15 ms of each process, and a host has hundreds that end together."""
    for name in ("colorsys", "nturl2path"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(preloaded, "_names", set())
    forkserver._import(["colorsys"], ["nturl2path"])
    assert {"colorsys", "nturl2path"} <= preloaded._names


def test_what_modules_with_actors_import_is_there_before_a_process_is_forked() -> None:
    """Else each process imports it itself: 2 ms, and its pages are shared with nobody."""
    assert {forkserver.CHILD, "monarch.actor"} <= set(forkserver._WANTED)
