"""Modules that the processes of a mesh do not take apart when they end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from monarch._mesh.start import forkserver, preloaded
from tests.support.tiers import full


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


ENDS = """
import ctypes, sys, threading
from monarch._mesh.start import preloaded
cpp = ctypes.CDLL("libstdc++.so.6")
preloaded._names.add("colorsys")
preloaded.end()
thread = threading.Thread(target=cpp["_ZSt9terminatev"], daemon=True)
thread.start()
while open(f"/proc/self/task/{thread.native_id}/syscall").read().split()[0] not in ("34", "73"):  # pause, ppoll
    pass
sys.exit(0)
"""


@pytest.mark.procs
@full
def test_a_thread_that_cpp_would_end_the_process_for_waits_instead() -> None:
    """Torch throws when the connection to another rank is gone, in threads that the end of the interpreter exits."""
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
