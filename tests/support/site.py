"""The documentation as a site, made as `make site` makes it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TIMEOUT = 300


def extension(name: str) -> ModuleType:
    """A file of docs as a module; they are no package."""
    pytest.importorskip("sphinx", reason="the site is made with Sphinx")
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_site(folder: Path) -> Path:
    """The site in this folder; fails with the warnings that Sphinx has."""
    pytest.importorskip("sphinx", reason="the site is made with Sphinx")
    words = [
        "-q",
        "-W",
        "--keep-going",
        "-n",
        "-b",
        "html",
        "-d",
        str(folder / "doctrees"),
        str(DOCS),
        str(folder / "site"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / "site"
