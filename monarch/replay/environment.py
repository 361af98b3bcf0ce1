"""The environment that matters to an actor: versions, folders, the environment, states of random generators."""

from __future__ import annotations

import os
import platform
import random
import sys
from collections.abc import Mapping
from typing import Any

_STARTS = ("MONARCH_", "HYPERACTOR_", "CUDA_", "HIP_", "ROCR_", "NCCL_", "RCCL_", "GLOO_", "TORCH", "PYTORCH_", "OMP_",
           "MKL_", "PYTHON", "SLURM_", "HF_")  # fmt: skip
_NAMES = {
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "LANG",
    "LC_ALL",
    "TZ",
}
_LARGE_FILE = 1 << 20
_MOST_FILES = 10
_SECRET = ("SECRET", "TOKEN", "PASS", "KEY", "CREDENTIAL", "AUTH")


def facts() -> dict[str, str]:
    """Returns versions and folders: for people, and to say what is different here."""
    return {
        "python": platform.python_version(),
        "pymonarch": str(getattr(sys.modules.get("monarch"), "__version__", "")),
        "platform": platform.platform(),
        "executable": sys.executable,
        "folder": os.getcwd(),
    }


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that libraries look at; none whose name says that it is a secret."""
    return {
        name: value
        for name, value in variables.items()
        if (name in _NAMES or name.startswith(_STARTS)) and not any(word in name.upper() for word in _SECRET)
    }


def modules() -> dict[str, str]:
    """The packages loaded now that have a version."""
    found = {}
    for name, module in list(sys.modules.items()):
        if "." not in name and not name.startswith("_") and name not in sys.stdlib_module_names:
            version = _version(module)
            if version is not None:
                found[name] = version
    return found


def _version(module: Any) -> str | None:
    """Returns the version as it stands in the module: to ask for it may run code of the module, which warns or fails.
    Plain text, also where it is of a class of its own, as torch's."""
    found = getattr(module, "__dict__", {}).get("__version__")
    return str(found) if isinstance(found, str) else None


def rng_state() -> dict[str, Any]:
    """Returns the states of the generators of this process that are loaded."""
    states: dict[str, Any] = {"random": random.getstate()}
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        states["numpy"] = numpy_random.get_state()
    torch = sys.modules.get("torch")
    if torch is not None:
        states["torch"] = bytes(torch.get_rng_state().tolist())  # not by way of numpy, which torch does without
    return states


def restore_rng_state(states: Mapping[str, Any]) -> None:
    """Puts the generators of this process into those states."""
    random.setstate(states["random"])
    if "numpy" in states:
        import numpy

        numpy.random.set_state(states["numpy"])
    if "torch" in states:
        import torch

        torch.set_rng_state(torch.frombuffer(bytearray(states["torch"]), dtype=torch.uint8))


def differences(then: Mapping[str, str], modules_then: Mapping[str, str]) -> list[str]:
    """Returns what is not as it was, in the order of how much it matters."""
    here = facts()
    found = [
        f"{name} {then[name]} then, {here[name]} here"
        for name in ("python", "pymonarch")
        if then.get(name) != here[name]
    ]
    for name, version in sorted(modules_then.items()):
        now = _version(sys.modules.get(name))
        if now is None and name in sys.modules:
            continue
        if now is None:
            now = _installed(name)
        if now != version:
            found.append(f"{name} {version} then, {now or 'not installed'} here")
    return found


def _installed(name: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def sources(cls: type) -> dict[str, str]:
    """The files that the methods of a class are from, if they can be read and are not large."""
    found: dict[str, str] = {}
    for owner in cls.__mro__:
        if owner is object or owner.__module__.startswith("monarch."):
            continue
        for member in vars(owner).values():
            function = getattr(member, "_method", None) or getattr(member, "__func__", None) or member
            code = getattr(function, "__code__", None)
            if code is None or code.co_filename in found or len(found) >= _MOST_FILES:
                continue
            try:
                if os.path.getsize(code.co_filename) <= _LARGE_FILE:
                    with open(code.co_filename, encoding="utf-8") as file:
                        found[code.co_filename] = file.read()
            except (OSError, ValueError):
                pass
    return found
