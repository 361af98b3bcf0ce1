"""Tests that what is declared for type checkers only is what there is."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import monarch
from monarch._mesh.actors import actor
from monarch._mesh.meshes import actor_mesh
from monarch._shape.view import ShapedMesh
from tests.support import path_stubs


def methods(module: ModuleType, name: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The methods of a class as written, those under TYPE_CHECKING included."""
    tree = ast.parse(inspect.getsource(module))
    (cls,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return {node.name: node for node in ast.walk(cls) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def interface(name: str) -> bool:
    """Returns whether a program uses this name of a mesh."""
    return not name.startswith("_") or name in ("__aenter__", "__aexit__", "__await__")


ON_MESHES = {name: node for name, node in methods(actor_mesh, "ActorMesh").items() if interface(name)}


@pytest.mark.parametrize("name", sorted(ON_MESHES))
def test_a_class_that_spawn_returns_has_the_methods_of_its_mesh(name: str) -> None:
    """A new method of ActorMesh is declared in Actor as well: checkers take what `spawn` returns for the class."""
    declared, real = methods(actor, "Actor").get(name), ON_MESHES[name]
    assert declared is not None, f"{name} is not declared in class Actor (monarch/_mesh/actors/actor.py)"
    assert ast.unparse(declared.args) == ast.unparse(real.args)
    if not name.startswith("__"):
        assert ast.unparse(declared.returns or ast.Pass()) == ast.unparse(real.returns or ast.Pass())


def test_the_rest_of_it_both_inherit() -> None:
    assert issubclass(actor.Actor, ShapedMesh.__mro__[1]) and issubclass(actor_mesh.ActorMesh, ShapedMesh)


def test_the_stub_of_the_package_says_what_its_table_says() -> None:
    stub = Path(inspect.getfile(monarch)).with_suffix(".pyi")
    found = {}
    for node in ast.walk(ast.parse(stub.read_text())):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = node.module in ("monarch", "monarch._older_paths")
                found[alias.asname] = (f"monarch.{alias.name}", "") if whole else (node.module, alias.name)
    assert found == vars(monarch)["_HOMES"]


def test_the_stubs_of_older_paths_are_those_of_the_folder() -> None:
    """Checkers do not see that `monarch/__init__.py` adds a folder to its path: stubs/ says it to them."""
    package = Path(inspect.getfile(monarch)).parent
    folder, stubs = package / "_older_paths", package.parent / "stubs" / "monarch-stubs"
    inner = {Path(name) for name in ("__init__", "_alias_modules", "_alias_table", "_private_names")}
    modules = {path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py")} - inner
    made = path_stubs.expected()
    found = {path for path in stubs.rglob("*.pyi") if path not in made}
    assert {path.relative_to(stubs).with_suffix("") for path in found} == modules
    for module in modules:
        text = (stubs / module).with_suffix(".pyi").read_text()
        dotted = ".".join(part for part in module.parts if part != "__init__")
        says = module.name != "__init__" or "__all__" in (folder / module).with_suffix(".py").read_text()
        assert text == (f"from monarch._older_paths.{dotted} import *\n" if says else "")


def test_the_stubs_of_paths_that_a_table_makes_say_what_the_table_says() -> None:
    written = {path: path.read_text() if path.exists() else None for path in path_stubs.expected()}
    assert written == path_stubs.expected(), "run: python -m tests.support.path_stubs"
