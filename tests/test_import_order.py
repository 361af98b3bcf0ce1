"""Who may import whom. Every import under monarch/ is read, those in functions and under TYPE_CHECKING too.

    _errors < _devices < config < _shape < _wire < _runtime < _mesh < actor < branches < job < tools

The trunk, from _errors to actor, imports only from its left. A branch stands on the door, as a user's program
does: it imports monarch.actor, monarch.config, monarch._errors, monarch._devices and its own files; job also the branches,
tools also job, `__main__` also tools. FACES are public paths of what monarch.tensor has, and import it and other faces,
nothing else. monarch.testing is the trunk's own test-kit and imports the trunk.
`monarch/__init__.py` is in front of all: it loads names when they are touched and imports nothing before.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "monarch"

TRUNK = ("_errors", "_devices", "config", "_shape", "_wire", "_runtime", "_mesh", "actor")
DOOR = ("_errors", "_devices", "config", "actor")
LATE = ("job", "tools", "__main__")
FACES = (
    "_testing",
    "builtins",
    "cached_remote_function",
    "common",
    "fetch",
    "gradient",
    "gradient_generator",
    "memory",
    "mesh_controller",
    "opaque_module",
    "opaque_object",
    "profiler",
    "random",
    "remote_class",
    "safe_torch",
    "simulator",
    "timer",
    "worker",
)
ROOT = ""  # monarch/__init__.py itself


def violations(package: Path) -> list[str]:
    """One line for each import under `package` that breaks the order: who imports what, and where."""
    parts = {path.stem for path in package.iterdir() if path.suffix == ".py" or path.is_dir()}
    found = []
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package).with_suffix("").parts
        part = ROOT if inside == ("__init__",) else inside[0]
        for line, target, deferred in imports(path, inside, parts):
            if not allowed(part, target, parts, deferred):
                where = path.relative_to(package.parent)
                found.append(f"{where}:{line}: {part or 'monarch'} may not import {target or 'monarch'}")
    return found


def allowed(part: str, target: str, parts: set[str], deferred: bool) -> bool:
    if part == target:
        return True
    if part == ROOT:
        return deferred
    if target == ROOT:  # a name of the door table: everything is to its left
        return False
    if part in TRUNK:
        return target in TRUNK[: TRUNK.index(part)]
    if part == "testing":
        return target in TRUNK
    if part in FACES:
        return target == "tensor" or target in FACES
    if part in LATE:
        branches = parts - set(TRUNK) - set(LATE)
        return target in DOOR or target in branches or target in LATE[: LATE.index(part)]
    return target in DOOR


def imports(path: Path, inside: tuple[str, ...], parts: set[str]) -> Iterator[tuple[int, str, bool]]:
    """(line, top-level part of monarch, whether only on a call) of each import of monarch in `path`."""
    tree = ast.parse(path.read_text(), str(path))
    in_functions = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        for module in modules(node, ("monarch", *inside)):
            first, _, rest = module.partition(".")
            if first == "monarch":
                top = rest.partition(".")[0]
                yield node.lineno, top if top in parts else ROOT, id(node) in in_functions  # type: ignore[attr-defined]


def modules(node: ast.AST, here: tuple[str, ...]) -> list[str]:
    """The dotted names `node` imports, as full names; for `from a import b` that is a.b, module or not."""
    match node:
        case ast.Import(names=names):
            return [name.name for name in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            # here is the module's path, of a package its __init__: one level up is the folder for both.
            base = [*here[: len(here) - level], *([module] if module else [])] if level else [module or ""]
            return [".".join([*base, name.name]) for name in names]
        case ast.Call(
            func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
            args=[ast.Constant(value=str(module)), *_],
        ):
            return [module]
    return []


def test_monarch_imports_only_from_the_left() -> None:
    assert violations(PACKAGE) == []


@pytest.mark.parametrize("part", ["_wire", "_runtime"])
def test_inside_these_parts_no_files_import_each_other_in_a_ring(part: str) -> None:
    files = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
        for path in PACKAGE.glob(f"{part}/**/*.py")
    }
    imported = {
        name: {
            target
            for node in ast.walk(ast.parse(path.read_text()))
            for module in modules(node, tuple(name.split(".")))
            for target in (module, module.rpartition(".")[0])
            if target in files
        }
        for name, path in files.items()
    }
    while free := {name for name, targets in imported.items() if not targets & imported.keys()}:
        imported = {name: targets for name, targets in imported.items() if name not in free}
    assert sorted(imported) == []  # these are in a ring, or import one that is


def test_every_part_of_the_trunk_is_there() -> None:
    missing = [part for part in TRUNK if not list(PACKAGE.glob(f"{part}*"))]
    assert missing == []


# The rule on trees made for it.


def tree(folder: Path, files: dict[str, str]) -> Path:
    package = folder / "monarch"
    every = [f"{part}/__init__.py" for part in (*TRUNK[1:], "rdma", "tensor", "testing", *LATE)]
    for name in [*every, "_errors.py", "timer.py", "__init__.py"]:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).touch()
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(textwrap.dedent(text))
    return package


@pytest.mark.parametrize(
    ("name", "text", "report"),
    [
        ("_errors.py", "import monarch.config", "1: _errors may not import config"),
        ("config/a.py", "from monarch import _shape", "1: config may not import _shape"),
        ("config/a.py", "from monarch import configure", "1: config may not import monarch"),
        ("config/a.py", "import monarch", "1: config may not import monarch"),
        ("_shape/a.py", "import json\nfrom monarch._wire.ids import Uid", "2: _shape may not import _wire"),
        ("_shape/deep/a.py", "from ..._wire import ids", "1: _shape may not import _wire"),
        ("_shape/deep/__init__.py", "from ... import _wire", "1: _shape may not import _wire"),
        ("_wire/a.py", "def f():\n    import monarch._runtime.proc as p", "2: _wire may not import _runtime"),
        ("_wire/a.py", "async def f():\n    from .. import _mesh", "2: _wire may not import _mesh"),
        (
            "_runtime/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from monarch._mesh.actors.actor import Actor",
            "3: _runtime may not import _mesh",
        ),
        (
            "_mesh/a.py",
            "try:\n    import monarch.actor\nexcept ImportError: ...",
            "2: _mesh may not import actor",
        ),
        ("_mesh/a.py", "importlib.import_module('monarch.rdma')", "1: _mesh may not import rdma"),
        ("_mesh/a.py", "__import__('monarch.job.base')", "1: _mesh may not import job"),
        ("_mesh/a.py", "import monarch.testing", "1: _mesh may not import testing"),
        ("actor/__init__.py", "from monarch import rdma", "1: actor may not import rdma"),
        ("rdma/a.py", "from monarch._wire import frame", "1: rdma may not import _wire"),
        ("rdma/a.py", "from monarch.testing import cluster", "1: rdma may not import testing"),
        ("rdma/a.py", "import monarch.job", "1: rdma may not import job"),
        ("branch.py", "import monarch._shape", "1: branch may not import _shape"),
        ("tensor/a.py", "import monarch.timer", "1: tensor may not import timer"),
        ("timer.py", "from monarch.actor import Actor", "1: timer may not import actor"),
        ("timer.py", "import monarch.rdma", "1: timer may not import rdma"),
        ("testing/a.py", "import monarch.rdma", "1: testing may not import rdma"),
        ("job/a.py", "import monarch.tools", "1: job may not import tools"),
        ("job/a.py", "import monarch._mesh", "1: job may not import _mesh"),
        ("tools/a.py", "import monarch._runtime.loop", "1: tools may not import _runtime"),
        ("__init__.py", "from monarch.actor import Actor", "1: monarch may not import actor"),
    ],
)
def test_an_import_from_the_right_is_reported(tmp_path: Path, name: str, text: str, report: str) -> None:
    assert violations(tree(tmp_path, {name: text})) == [f"monarch/{name}:{report}"]


def test_imports_from_the_left_are_not_reported(tmp_path: Path) -> None:
    files = {
        "__init__.py": "import importlib\ndef __getattr__(name):\n    from monarch import actor",
        "config/a.py": "import os, json\nfrom monarch._errors import E\nfrom . import b\nfrom .b import c",
        "_wire/transport/unix.py": "from .base import Base\nfrom ...config import settings",
        "_mesh/a.py": "from monarch import _errors, config, _shape, _wire, _runtime",
        "actor/__init__.py": "from monarch._mesh.actors.actor import Actor\nfrom monarch._runtime import port",
        "rdma/a.py": "from monarch.actor import Actor\nfrom monarch import config, _errors\nfrom .b import c",
        "branch.py": "import monarch.actor\nimport monarchy",
        "timer.py": "from monarch.tensor.timing import a",
        "builtins/__init__.py": "from monarch.builtins import log\nimport monarch.timer",
        "testing/a.py": "from monarch._runtime import proc\nfrom monarch.actor import Actor",
        "job/a.py": "import monarch.actor, monarch.rdma",
        "tools/a.py": "import monarch.job, monarch.rdma",
    }
    assert violations(tree(tmp_path, files)) == []


# What importing costs.


def test_importing_the_actor_api_loads_neither_torch_nor_numpy() -> None:
    if not (PACKAGE / "actor" / "__init__.py").exists():
        pytest.skip("monarch.actor is not there yet")
    program = "import sys, monarch.actor; print(*sorted({'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [], "")
