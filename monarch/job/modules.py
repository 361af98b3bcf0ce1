"""Modules that a job is named by: MODULE.ATTRIBUTE, or the class in a project's file."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

from monarch._linux import private_files


def search_here() -> str:
    """Has modules of the working directory found before others. Not where somebody else could put one: then it says why, and
    otherwise returns ""."""
    try:
        folder = os.getcwd()
        if "" not in sys.path and folder not in sys.path:
            sys.path.insert(0, private_files.closed_folder(folder))
    except OSError as exc:
        return str(exc)
    return ""


def load(name: str) -> ModuleType:
    """Imports a module, of the working directory too. ModuleNotFoundError, which says why that was not searched."""
    why = search_here()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{name}.".startswith(f"{exc.name}."):
            raise
        if not why:
            file = f"{exc.name.replace('.', '/')}.py"
            raise ModuleNotFoundError(
                f"{exc}: there is no {file} in {os.getcwd()}, and no such module is installed", name=exc.name
            ) from None
        raise ModuleNotFoundError(
            f"{exc}; modules of the working directory are not imported, since somebody else could put one there: {why}. Work "
            f"in a folder of your own, or name the folder in PYTHONPATH if you trust who writes there",
            name=exc.name,
        ) from None
