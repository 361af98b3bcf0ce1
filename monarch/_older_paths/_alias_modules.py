"""Modules made from a table when they are imported: aliases of public names, at the paths where libraries look for them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from monarch._older_paths._alias_table import ALIASES, REFUSED

_ROOT = "monarch."

# A process command runs it: `python -m monarch._src.actor.bootstrap_main`.
_RUN = f"{_ROOT}_src.actor.bootstrap_main"

_SOURCE = """\
from monarch._older_paths._alias_modules import names_of
__all__, __getattr__ = names_of({name!r})
"""
_RUN_SOURCE = """\
from monarch._older_paths.bootstrap_main import invoke_main, main
if __name__ == '__main__':
    invoke_main()
"""


def modules() -> set[str]:
    """Returns the modules of the table, and the packages that they are in, by their whole names."""
    found: set[str] = set()
    for name in (*ALIASES, *REFUSED):
        parts = name.split(".")
        found.update(_ROOT + ".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return found


def homes(module: str) -> dict[str, tuple[str, str]]:
    """Returns where the names of a module are defined: name -> (module, name there)."""
    found = {}
    for home, names in ALIASES.get(module.removeprefix(_ROOT), {}).items():
        for word in names.split():
            real, _, alias = word.partition(":")
            found[alias or real] = (home, real)
    return found


def names_of(module: str) -> tuple[list[str], Any]:
    """Returns `__all__` and `__getattr__` of a module: each name is found when it is first asked for."""
    found = homes(module)
    refused = REFUSED.get(module.removeprefix(_ROOT), {})

    def get(name: str) -> Any:
        if name in refused:
            raise ImportError(f"{module}.{name} is not there: {refused[name]}")
        if name not in found:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, real = found[name]
        value = getattr(importlib.import_module(home), real)
        setattr(sys.modules[module], name, value)
        return value

    return sorted(found), get


class AliasFinder(MetaPathFinder, InspectLoader):
    """Finds and makes the modules of the table."""

    def __init__(self) -> None:
        self._modules = modules()
        self._packages = {name.rpartition(".")[0] for name in self._modules}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._modules:
            return None
        return ModuleSpec(fullname, self, is_package=self.is_package(fullname))

    def is_package(self, fullname: str) -> bool:
        return fullname in self._packages

    def get_source(self, fullname: str) -> str:
        return _RUN_SOURCE if fullname == _RUN else _SOURCE.format(name=fullname)


def install() -> None:
    """Has Python find these modules, after all others. Done once; costs an import of anything else nothing."""
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.append(AliasFinder())
