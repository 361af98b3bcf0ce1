"""The order of imports. Every import under monarch/ is read, those in functions and under TYPE_CHECKING too; the latter may
close a ring of files within one folder, and only there.

    _text < _html < _short_reprs < _errors < _linux < _devices < config < _shape < _wire < _http < _runtime < _mesh < actor
        < optional packages < SEEING < job < tools

The trunk, from _text to actor, imports only from its left. An optional package uses the public API, as a user's program
does: it imports monarch.actor, monarch.config, monarch._devices and its own files, and what everybody may: monarch._text,
monarch._errors, monarch._linux and monarch._http; job also the optional
packages, tools also job, `__main__` also tools. SEEING are the rooms that look into a program that runs: each may import the
trunk and those of them to its left. FACES are public paths of what monarch.tensor has, and import it and other
faces, nothing else; OTHER_FACES those of other packages. monarch.testing is the trunk's own test-kit and
imports the trunk.
`monarch/__init__.py` is in front of all: it loads names when they are touched and imports nothing before.

Inside a part of ROOMS the folders have an order as well, and no files import each other in a ring, within a folder neither.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from monarch._mesh import plugins
from monarch._mesh.inspection import admin_socket

PACKAGE = Path(__file__).resolve().parents[1] / "monarch"

TRUNK = (
    "_text", "_html", "_short_reprs", "_errors", "_linux", "_devices", "config", "_shape", "_wire", "_http", "_runtime",
    "_mesh", "actor",
)  # fmt: skip
PUBLIC = ("_text", "_errors", "_linux", "_devices", "config", "_http", "actor")
LATE = ("job", "tools", "__main__")
SEEING = ("telemetry", "metrics", "admin", "debugger", "trace", "replay", "dashboard")
FACES = ("builtins", "checkpoint", "memory", "profiler", "random", "simulator", "timer")
OTHER_FACES = {
    "gather_mount": ("remotemount",),
    "_older_paths": ("_linux", "_runtime", "_mesh", "actor", "spmd", "telemetry", "tensor", "job"),
}
ROOT = ""  # monarch/__init__.py itself

# The folders of a part, each importing only from its left and itself; TOP are the files beside them. The part's own
# __init__.py shows what is in all of them: it imports any, and none imports it.
TOP = "."
PROGRAMS = ("bootstrap.py",)  # run with `python -m`; as an __init__.py they may import any, and none imports them
ROOMS = {
    "_mesh": (
        TOP, "output", "start", "casts", "failures", "inspection", "agent", "actors", "meshes", "workspace", "process",
    ),
    "tensor": (TOP, "worker", "controller", "recording", "remote", "simulator"),
}  # fmt: skip


RINGS_STAY = {
    "_shape": "an Extent gives its Region and a Region its Extent: public properties",
    "config": "its test helper sets settings through the public `configured`",
}


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
    if target == ROOT:  # a name of the public table: everything is to its left
        return False
    if part in TRUNK:
        return target in TRUNK[: TRUNK.index(part)]
    if part == "testing":
        return target in TRUNK
    if part in SEEING:
        return target in TRUNK or target in SEEING[: SEEING.index(part)]
    if part in FACES:
        return target == "tensor" or target in FACES
    if part in OTHER_FACES:
        return target in OTHER_FACES[part]
    if part in LATE:
        packages = parts - set(TRUNK) - set(LATE)
        return target in PUBLIC or target in packages or target in LATE[: LATE.index(part)]
    return target in PUBLIC


def imports(path: Path, inside: tuple[str, ...], parts: set[str]) -> Iterator[tuple[int, str, bool]]:
    """(line, top-level part of monarch, whether only on a call) of each import of monarch in `path`."""
    for line, module, deferred, _ in imported(path, inside):
        first, _, rest = module.partition(".")
        if first == "monarch":
            top = rest.partition(".")[0]
            yield line, top if top in parts else ROOT, deferred


class Import(NamedTuple):
    line: int
    module: str  # the dotted name
    deferred: bool  # runs only on a call
    for_types: bool  # under `if TYPE_CHECKING`: never runs


TYPE_CHECKING = ("TYPE_CHECKING", "typing.TYPE_CHECKING")


@functools.cache
def imported(path: Path, inside: tuple[str, ...]) -> list[Import]:
    """Each import in `path`, which is `inside` of monarch."""
    source = path.read_text()
    expressions = "import_module" in source or "__import__" in source  # elsewhere none imports anything
    found = []
    nodes: list[tuple[ast.AST, bool, bool]] = [(ast.parse(source, str(path)), False, False)]
    while nodes:
        node, deferred, for_types = nodes.pop()
        found += [Import(node.lineno, module, deferred, for_types) for module in modules(node, ("monarch", *inside))]  # type: ignore[attr-defined]
        deferred = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        types = node.body if isinstance(node, ast.If) and ast.unparse(node.test) in TYPE_CHECKING else []
        for child in ast.iter_child_nodes(node):
            if expressions or not isinstance(child, ast.expr):
                nodes.append((child, deferred, for_types or child in types))
    return sorted(found)


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


def room_violations(package: Path, part: str, rooms: tuple[str, ...]) -> list[str]:
    """One line for each import inside `part` that breaks the order of its folders."""
    found = []
    front = package / part / "__init__.py"
    programs = [package / part / name for name in PROGRAMS]
    for path, line, target, _ in inner_imports(package, part):
        here, there = room(package / part, path), room(package / part, target)
        where = f"{path.relative_to(package.parent)}:{line}"
        if path == front or path in programs:
            continue
        if here not in rooms:
            found.append(f"{where}: {here} has no place in the order of {part}")
        elif target == front or target in programs:
            found.append(f"{where}: {here} may not import {target.stem.replace('__init__', part)} itself")
        elif there not in rooms[: rooms.index(here) + 1]:
            found.append(f"{where}: {here} may not import {there}")
    return found


def inner_imports(package: Path, part: str) -> Iterator[tuple[Path, int, Path, bool]]:
    """(file, line, file, whether for types only) of each import of one file of `part` by another."""
    for path in sorted((package / part).rglob("*.py")):
        inside = path.relative_to(package).with_suffix("").parts
        for line, module, _, for_types in imported(path, inside):
            target = file_of(package, module.split("."))
            if target is not None and target != path and target.is_relative_to(package / part):
                yield path, line, target, for_types


def file_of(package: Path, names: list[str]) -> Path | None:
    """The file of monarch that an import of this dotted name loads; the last names may be what is in the file."""
    if names[0] != package.name:
        return None
    for end in range(len(names), 0, -1):
        stem = package.joinpath(*names[1:end])
        for file in (stem.with_suffix(".py"), stem / "__init__.py"):
            if file.exists() and stem != package:
                return file
    return None


def room(part: Path, file: Path) -> str:
    inside = file.relative_to(part).parts
    return inside[0] if len(inside) > 1 else TOP


def rings(package: Path, part: str) -> list[str]:
    """One line for each ring of files of `part`: who imports whom, back to the first.

    What a file imports for its types alone counts between folders, and not within one.
    """
    graph: dict[Path, list[Path]] = {}
    for path, _, target, for_types in inner_imports(package, part):
        if not (for_types and path.parent == target.parent):
            graph.setdefault(path, []).append(target)
    done: set[Path] = set()
    found = []

    def visit(file: Path, way: list[Path]) -> None:
        if file in way:
            ring = [*way[way.index(file) :], file]
            found.append(" -> ".join(str(one.relative_to(package / part).with_suffix("")) for one in ring))
            return
        if file in done:
            return
        for target in graph.get(file, ()):
            visit(target, [*way, file])
        done.add(file)

    for file in sorted(graph):
        visit(file, [])
    return found


def test_monarch_imports_only_from_the_left() -> None:
    assert violations(PACKAGE) == []


def test_every_part_of_the_trunk_is_there() -> None:
    missing = [part for part in TRUNK if not list(PACKAGE.glob(f"{part}*"))]
    assert missing == []


@pytest.mark.parametrize("part", ROOMS)
def test_the_folders_of_a_part_import_only_from_the_left(part: str) -> None:
    assert room_violations(PACKAGE, part, ROOMS[part]) == []


@pytest.mark.parametrize(
    "part", sorted({path.parent.name for path in PACKAGE.glob("*/__init__.py")} - RINGS_STAY.keys())
)
def test_no_files_of_a_part_import_each_other_in_a_ring(part: str) -> None:
    assert rings(PACKAGE, part) == []


@pytest.mark.parametrize("part", ROOMS)
def test_every_folder_of_a_part_has_its_place(part: str) -> None:
    folders = {path.parent.name for path in (PACKAGE / part).glob("*/*.py")}
    assert folders == set(ROOMS[part]) - {TOP}


# The reach upwards by name.


@pytest.mark.parametrize("name", plugins.OUTER)
def test_each_outer_function_exists(name: str) -> None:
    module, function = plugins.OUTER[name]
    file = file_of(PACKAGE, ["monarch", *module.split(".")])
    assert file is not None
    defined = ast.parse(file.read_text()).body
    assert function in [getattr(node, "name", "") for node in defined]


def test_outer_functions_are_called_by_their_names_in_the_table_alone() -> None:
    assert list(plugins_named(PACKAGE, ("load", "import_module"))) == []
    named = set(plugins_named(PACKAGE, ("outer", "_outer")))
    assert named | set(admin_socket.STREAMS.values()) == plugins.OUTER.keys()


def plugins_named(package: Path, functions: tuple[str, ...]) -> Iterator[str]:
    """Every literal that is given to one of these functions outside of the module that has the table."""
    for path in sorted(package.rglob("*.py")):
        source = path.read_text()
        if path == package / "_mesh" / "plugins.py" or not any(f"{name}(" in source for name in functions):
            continue
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="plugins"), attr=called) | ast.Name(id=called),
                    args=[ast.Constant(value=str(name)), *_],
                ) if called in functions:
                    yield name


# The rule on trees made for it.


def tree(folder: Path, files: dict[str, str]) -> Path:
    package = folder / "monarch"
    every = [f"{part}/__init__.py" for part in (*TRUNK[2:], "rdma", "tensor", "testing", *LATE)]
    for name in [*every, "_text.py", "_errors.py", "timer.py", "__init__.py"]:
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
        ("_runtime/a.py", "if TYPE_CHECKING:\n    from monarch._mesh.a import A", "2: _runtime may not import _mesh"),
        ("_mesh/a.py", "try:\n    import monarch.actor\nexcept ImportError: ...", "2: _mesh may not import actor"),
        ("_mesh/a.py", "importlib.import_module('monarch.rdma')", "1: _mesh may not import rdma"),
        ("_mesh/a.py", "__import__('monarch.job.base')", "1: _mesh may not import job"),
        ("_mesh/a.py", "import monarch.testing", "1: _mesh may not import testing"),
        ("actor/__init__.py", "from monarch import rdma", "1: actor may not import rdma"),
        ("rdma/a.py", "from monarch._wire import frame", "1: rdma may not import _wire"),
        ("rdma/a.py", "from monarch.testing import cluster", "1: rdma may not import testing"),
        ("tensor/a.py", "import monarch.timer", "1: tensor may not import timer"),
        ("timer.py", "from monarch.actor import Actor", "1: timer may not import actor"),
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


IN_ORDER = (TOP, "low", "high")


@pytest.mark.parametrize(
    ("name", "text", "report"),
    [
        ("base.py", "from monarch.tensor.low import a", "1: . may not import low"),
        ("low/a.py", "import json\nfrom monarch.tensor.high.b import B", "2: low may not import high"),
        ("low/a.py", "from ..high import b", "1: low may not import high"),
        ("low/a.py", "from monarch.tensor import high", "1: low may not import high"),
        ("low/deep/a.py", "if TYPE_CHECKING:\n    from monarch.tensor.high import b", "2: low may not import high"),
        ("high/a.py", "from monarch.tensor import Shown", "1: high may not import tensor itself"),
        ("strange/a.py", "from monarch.tensor import base", "1: strange has no place in the order of tensor"),
        ("high/a.py", "from monarch.tensor.strange import a", "1: high may not import strange"),
    ],
)
def test_an_import_from_a_later_folder_is_reported(tmp_path: Path, name: str, text: str, report: str) -> None:
    package = rooms(tmp_path, {f"tensor/{name}": text})
    assert room_violations(package, "tensor", IN_ORDER) == [f"monarch/tensor/{name}:{report}"]


def test_imports_from_earlier_folders_are_not_reported(tmp_path: Path) -> None:
    files = {
        "tensor/__init__.py": "from monarch.tensor.high.b import B\nfrom monarch.tensor import base",
        "tensor/base.py": "import monarch.config\nfrom monarch.actor import high",
        "tensor/low/a.py": "from monarch.tensor.base import f\nfrom .. import other\nfrom . import c",
        "tensor/high/b.py": "from monarch.tensor.low.a import A\nfrom monarch.tensor import base, low",
    }
    package = rooms(tmp_path, files)
    assert (room_violations(package, "tensor", IN_ORDER), rings(package, "tensor")) == ([], [])


@pytest.mark.parametrize(
    ("files", "report"),
    [
        ({"base": "from monarch.tensor import other", "other": "from .base import f"}, "base -> other -> base"),
        (
            {"low/a": "from ..low import c", "low/c": "def f():\n    from . import d", "low/d": "from .a import A"},
            "low/a -> low/c -> low/d -> low/a",
        ),
        (
            {"base": "from .low.a import A", "low/a": "if TYPE_CHECKING:\n    from monarch.tensor.base import f"},
            "base -> low/a -> base",
        ),
        (
            {"high/__init__": "from monarch.tensor.high.b import B", "high/b": "import monarch.tensor.high"},
            "high/__init__ -> high/b -> high/__init__",
        ),
    ],
)
def test_a_ring_of_files_is_reported(tmp_path: Path, files: dict[str, str], report: str) -> None:
    package = rooms(tmp_path, {f"tensor/{name}.py": text for name, text in files.items()})
    assert rings(package, "tensor") == [report]


def test_a_ring_of_types_within_a_folder_is_not_reported(tmp_path: Path) -> None:
    low = {"a": "from monarch.tensor.low import c", "c": "if TYPE_CHECKING:\n    from monarch.tensor.low.a import A"}
    package = rooms(tmp_path, {f"tensor/low/{name}.py": text for name, text in low.items()})
    assert rings(package, "tensor") == []


def rooms(folder: Path, files: dict[str, str]) -> Path:
    every = ("base", "other", "low/__init__", "low/a", "low/c", "low/d", "high/__init__", "high/b", "strange/a")
    return tree(folder, {**{f"tensor/{name}.py": "" for name in every}, **files})


# What importing costs.


# Of the standard library and of others, what takes long to import and few programs need at once. What msgspec brings does not
# count: with typing_extensions installed it brings inspect; nor does logging, which brings dataclasses from Python 3.14 on.
HEAVY = (
    "torch", "numpy", "asyncio", "cloudpickle", "concurrent.futures", "ctypes", "dataclasses", "difflib", "hashlib",
    "inspect", "ipaddress", "multiprocessing", "pathlib", "random", "ssl", "subprocess", "tempfile", "urllib.parse",
)  # fmt: skip

# Ours that run something: a client, an agent, a process. They are loaded when a program first starts something.
RUNNING = (
    "_mesh.agent", "_mesh.actors.behaviour", "_mesh.actors.map_results", "_mesh.inspection.wait_graph",
    "_mesh.process.client",
    "_mesh.process.mesh_layer", "_mesh.process.running_client", "_mesh.start.run_directory", "_runtime.instance",
    "_runtime.proc", "_runtime.processes", "_wire.transport.unix", "config.parametrize",
)  # fmt: skip

MOST_MODULES = 107  # of ours that `import monarch.actor` may load; 99 when this was written, and 145 before


def test_importing_the_actor_api_loads_what_programs_are_written_with_and_no_more() -> None:
    program = """
    import logging, msgspec, sys
    before = set(sys.modules)
    import monarch.actor
    print(*sorted(set(sys.modules) - before))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = done.stdout.split()
    assert done.stderr == ""
    assert [name for name in HEAVY if name in loaded] == [], "import these where they are first used"
    assert [name for name in RUNNING if f"monarch.{name}" in loaded] == [], (
        "only a program that starts something needs these"
    )
    ours = [name for name in loaded if name.split(".")[0] == "monarch"]
    assert len(ours) <= MOST_MODULES, f"{len(ours)} modules; which can be loaded later?"


def test_importing_the_actor_api_makes_no_decoder_of_all_messages() -> None:
    program = "import monarch.actor; from monarch._wire import message; print('decode' in vars(message))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False", "it takes as long to make as fifty modules to import"
