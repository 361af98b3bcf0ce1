"""docs/reference has every public name, once, and no name that is gone; each has a docstring."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

from monarch.actor import EndpointProperty

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs/reference").glob("*.md"))

# What programs import. Names are those of `__all__`, or given here.
PUBLIC: dict[str, str] = {
    "monarch": "",
    "monarch.actor": "",
    "monarch.actor.concurrent": "",
    "monarch.actor.lowlevel": "",
    "monarch.actor_mesh": "",
    "monarch.admin": "",
    "monarch.builtins": "",
    "monarch.cached_remote_function": "",
    "monarch.checkpoint": "",
    "monarch.common._coalescing": "",
    "monarch.config": "",
    "monarch.dashboard": "",
    "monarch.distributed_telemetry.engine": "",
    "monarch.experimental.thread_timeout": "",
    "monarch.fetch": "",
    "monarch.gather_mount": "",
    "monarch.gradient": "",
    "monarch.gradient_generator": "",
    "monarch.graph": "",
    "monarch.job": "",
    "monarch.job.kubernetes": "",
    "monarch.job.ray": "",
    "monarch.job.skypilot": "SkyPilotJob",
    "monarch.job.slurm": "",
    "monarch.job.spmd": "",
    "monarch.job.ssh": "",
    "monarch.memory": "",
    "monarch.mesh_controller": "",
    "monarch.metrics": "",
    "monarch.opaque_module": "",
    "monarch.opaque_object": "",
    "monarch.proc_mesh": "",
    "monarch.profiler": "",
    "monarch.random": "",
    "monarch.rdma": "",
    "monarch.references": "",
    "monarch.remote_class": "",
    "monarch.remotemount.remotemount": "MountHandler remotemount",
    "monarch.replay": "",
    "monarch.safe_torch": "",
    "monarch.service": "",
    "monarch.simulator": "",
    "monarch.spmd": "",
    "monarch.telemetry": "",
    "monarch.tensor": "",
    "monarch.tensor.simulator": "",
    "monarch.testing": "",
    "monarch.timer": "",
    "monarch.tools.commands": "",
    "monarch.tools.config": "",
    "monarch.tools.debug_env": "",
    "monarch.tools.mesh_spec": "",
    "monarch.tools.network": "",
    "monarch.trace": "",
}

# These have `__all__` for the packages beside them.
INNER = """
    monarch.actor.file_sync monarch.actor.host_agent monarch.actor.run_folders monarch.admin.output
    monarch.admin.stacks monarch.admin.status monarch.tensor.propagation monarch.tensor.remote.checkpoint
    monarch.bootstrap_main monarch.tensor.remote.device_memory monarch.tensor.simulator.effects
    monarch.timer.execution_timer monarch.tools.config.environment monarch.tools.utils monarch.tools.utils.conda
    monarch.trace.sampling monarch.utils
""".split()  # noqa: SIM905

# What is public for its own package only, and methods that torch itself has no words for.
UNWRITTEN = {
    "monarch.testing.Network": {"remove", "rules", "held", "listen", "close", "connect", "forget", "delivered"},
    "monarch.Tensor": {"map2_", "relu"},
}

DIRECTIVE = re.compile(r"^\.\. (py:currentmodule|auto\w+):: *([\w.]+)", re.MULTILINE)
ROW = re.compile(r"^\| `([\w.]+)` \| (.+) \| \[([\w.]+)\]\(\w+\.md\) \|$", re.MULTILINE)
NAME = re.compile(r"`(\w+)`(?: \(`(\w+)`\))?")


def load(module: str) -> types.ModuleType:
    if PUBLIC.get(module) is not None and module not in ("monarch.actor", "monarch.config", "monarch.testing"):
        pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(module)


def names_of(module: str) -> list[str]:
    found = load(module)
    names = PUBLIC[module].split() or found.__all__
    return [
        name for name in names if not name.startswith("__") and not isinstance(getattr(found, name), types.ModuleType)
    ]


def documented() -> list[tuple[str, str]]:
    """(module, name) of every directive of the reference, in order."""
    found = []
    for page in PAGES:
        module = ""
        for kind, name in DIRECTIVE.findall(page.read_text()):
            if kind == "py:currentmodule":
                module = name
            else:
                found.append((module, name))
    return found


def elsewhere() -> dict[tuple[str, str], tuple[str, str]]:
    """(module, name) -> (module, name) of which it is another path."""
    found = {}
    for path, names, home in ROW.findall((ROOT / "docs/reference/older-paths.md").read_text()):
        for name, there in NAME.findall(names):
            found[path, name] = (home, there or name)
    return found


def test_each_module_that_lists_names_is_public_or_said_not_to_be() -> None:
    listing = []
    for path in sorted((ROOT / "monarch").rglob("*.py")):
        parts = [part for part in path.relative_to(ROOT).with_suffix("").parts if part != "_older_paths"]
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        public = not any(part.startswith("_") for part in module.split("."))
        if public and re.search(r"^__all__\b", path.read_text(), re.MULTILINE):
            listing.append(module)
    assert set(listing) - set(PUBLIC) == set(INNER)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    there, other = set(documented()), elsewhere()
    missing = []
    for name in names_of(module):
        home = other.get((module, name), (module, name))
        if home not in there or getattr(load(home[0]), home[1]) is not getattr(load(module), name):
            missing.append(name)
    assert missing == []


def test_no_name_of_the_reference_is_gone_or_there_twice() -> None:
    there = documented()
    assert len(there) == len(set(there)) > 300
    assert [f"{module}.{name}" for module, name in there if name not in names_of(module)] == []
    gone = [path for path in elsewhere() if not hasattr(load(path[0]), path[1])]
    assert gone == []


def unwritten_members(full: str, cls: type) -> list[str]:
    found = []
    for base in cls.__mro__:
        if not base.__module__.startswith("monarch"):
            continue
        for name, value in vars(base).items():
            written = isinstance(value, (types.FunctionType, property, classmethod, staticmethod, EndpointProperty))
            if written and not name.startswith("_") and not inspect.getdoc(getattr(cls, name)):
                found.append(name)
    return sorted(set(found) - UNWRITTEN.get(full, set()))


def test_every_name_of_the_reference_has_a_docstring_and_so_have_its_methods() -> None:
    without = []
    for module, name in documented():
        value: Any = getattr(load(module), name)
        full = f"{module}.{name}"
        if isinstance(value, type):
            own = value.__doc__
            if not own or own.startswith(f"{name}("):  # what a dataclass makes up
                without.append(full)
            if not issubclass(value, enum.Enum):
                without += [f"{full}.{member}" for member in unwritten_members(full, value)]
        elif callable(value) and not getattr(value, "__doc__", None):
            without.append(full)
    assert without == []


def test_names_are_shown_without_private_modules() -> None:
    assert not re.search(r"monarch\._[a-z]", "".join(page.read_text() for page in PAGES))
