"""Modules whose files changed are loaded again in processes that run already."""

from __future__ import annotations

import ast
import importlib
import linecache
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

from monarch._errors import WorkspaceError
from monarch._mesh.actors.actor import Actor
from monarch._mesh.actors.endpoint import endpoint
from monarch._mesh.meshes.proc_mesh import ProcMesh
from monarch._runtime.context import here
from monarch._shape.extent import Point
from monarch._wire.address import host_of


def imported_by(name: str, is_package: bool, source: str) -> set[str]:
    """The modules that the source of module `name` names in its imports, at any depth; none where it does not parse. Pure."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return set()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(name, is_package, node)
            if base:
                found.add(base)
                found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def _base(name: str, is_package: bool, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    names = name.split(".")
    names = names[: len(names) - node.level + is_package]
    return ".".join([*names, node.module] if node.module else names)


def in_order(imports: Mapping[str, Collection[str]]) -> list[str]:
    """The keys, each after those it imports; where they import each other, in the order given. Pure."""
    result: list[str] = []
    seen: set[str] = set()
    for start in imports:
        stack = [(start, False)]
        while stack:
            name, done = stack.pop()
            if done:
                result.append(name)
            elif name not in seen:
                seen.add(name)
                stack.append((name, True))
                stack.extend((other, False) for other in sorted(imports[name], reverse=True) if other in imports)
    return result


class Reloader(Actor):
    """Reloads modules in its process; the other actors there run on meanwhile."""

    _is_system_actor = True

    @endpoint
    def reload(self, changed: Mapping[str, Collection[str]]) -> list[str]:
        """Reloads the modules loaded from the files named for this process's host, imported ones before those that import
        them. Answers with what failed.

        A module that fails is left as far as it came, as by importlib.reload, and the others are reloaded.
        """
        importlib.invalidate_caches()
        modules = loaded_from(changed.get(here().host, ()))
        failed = []
        for name in in_order({name: _imports(module) for name, module in modules.items()}):
            linecache.checkcache(modules[name].__file__)
            try:
                importlib.reload(modules[name])
            except Exception as error:
                failed.append(f"{name} ({modules[name].__file__}) in {here().address}: {type(error).__name__}: {error}")
        return failed


def loaded_from(files: Collection[str]) -> dict[str, ModuleType]:
    """The modules of this process whose source is one of `files`, but for the program's own `__main__`."""
    wanted = {os.path.realpath(path) for path in files}
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        spec = getattr(module, "__spec__", None)
        if isinstance(file, str) and spec is not None and name != "__main__" and os.path.realpath(file) in wanted:
            found[name] = module
    return found


def _imports(module: ModuleType) -> set[str]:
    try:
        with open(str(module.__file__), encoding="utf-8") as file:
            source = file.read()
    except (OSError, ValueError):
        return set()
    return imported_by(module.__name__, hasattr(module, "__path__"), source)


async def reload_modules(meshes: Sequence[ProcMesh], changed: Mapping[str, Collection[str]]) -> None:
    """Reloads in each process of `meshes` what changed on its host (prefix of its addresses -> paths of files).

    WorkspaceError names every module that could not be loaded again. Processes that ended are passed over.
    """
    changed = {host: sorted(path for path in paths if path.endswith(".py")) for host, paths in changed.items()}
    failed: list[str] = []
    for mesh in meshes:
        if not mesh._spec.stopped:
            failed += await _reload(mesh, changed)
    if failed:
        raise WorkspaceError(
            "the files were synced, but modules could not be loaded again:\n  " + "\n  ".join(failed[:10])
        )


async def _reload(mesh: ProcMesh, changed: Mapping[str, Collection[str]]) -> list[str]:
    if not any(changed.get(host_of(address)) for address in mesh._addresses()):
        return []
    reloaders: list[Any] = [view.spawn("reload", Reloader) for view in _living(mesh)]
    try:
        calls = [reloader.reload.call(changed) for reloader in reloaders]
        return [problem for call in calls for problems in (await call).values() for problem in problems]
    finally:
        for reloader in reloaders:
            await reloader.stop()


def _living(mesh: ProcMesh) -> list[ProcMesh]:
    """Returns as few meshes as hold the processes that have not ended."""
    ended = set(mesh._owned.ended_ranks()) if mesh._owned is not None else set()
    if not ended:
        return [mesh]
    extent = mesh.extent
    return [mesh.slice(**Point(rank, extent)) for rank in range(len(mesh)) if rank not in ended]
