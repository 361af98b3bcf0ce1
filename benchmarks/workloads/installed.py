"""What pip downloads and unpacks for a contender: its wheel, what the wheel unpacks to, and everything it
requires.
"""

from __future__ import annotations

import importlib.metadata as metadata
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from _workload import Params, Samples, main

PEERS = {"torchmonarch": "torchmonarch", "ray": "ray"}


def canonical(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required(requirements: list[str]) -> list[str]:
    """Names in Requires-Dist lines, less those of extras."""
    plain = [line for line in requirements if not re.search(r";.*\bextra\s*==", line)]
    return [canonical(re.split(r"[\s<>=!~;\[(]", line, maxsplit=1)[0]) for line in plain]


def closure(roots: list[str]) -> list[metadata.Distribution]:
    """The installed distributions that `roots` and what they require amount to. A requirement that is not
    installed (its marker excludes this machine) does not count.
    """
    found: dict[str, metadata.Distribution] = {}
    todo = list(roots)
    while todo:
        name = todo.pop()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        todo += required(found[name].requires or [])
    return list(found.values())


def unpacked(distribution: metadata.Distribution) -> float:
    """Bytes of a distribution's files as its record lists them (bytecode caches have no size there)."""
    return float(sum(file.size or 0 for file in distribution.files or []))


def installed(params: Params) -> Samples:
    """Samples "wheel" (bytes to download), "unpacked" (the distribution itself), "dependencies" (how many
    more distributions it brings) and "total" (all of them unpacked).
    """
    with tempfile.TemporaryDirectory() as folder:
        if params["contender"] == "ours":
            return _checkout(params["root"], Path(folder))
        name = PEERS[params["contender"]]
        dists = closure([name])
        samples = {
            "unpacked": [unpacked(metadata.distribution(name))],
            "dependencies": [float(len(dists) - 1)],
            "total": [sum(unpacked(d) for d in dists)],
        }
        if not params["quick"]:
            spec = f"{name}=={metadata.version(name)}"
            _pip("download", "--no-deps", "--only-binary=:all:", "-d", folder, spec)
            samples["wheel"] = [float(path.stat().st_size) for path in Path(folder).iterdir()]
        return samples


def _checkout(root: str, folder: Path) -> Samples:
    """Builds the checkout's wheel and looks inside."""
    _pip("wheel", "--no-deps", "-w", str(folder), root)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        size = float(sum(info.file_size for info in archive.infolist()))
        (entry,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        about = archive.read(entry).decode()
    lines = [line.removeprefix("Requires-Dist: ") for line in about.splitlines() if line.startswith("Requires-Dist: ")]
    dists = closure(required(lines))
    return {
        "wheel": [float(wheel.stat().st_size)],
        "unpacked": [size],
        "dependencies": [float(len(dists))],
        "total": [size + sum(unpacked(d) for d in dists)],
    }


def _pip(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise RuntimeError(f"Error: pip {arguments[0]} failed: {errors[-1] if errors else done.stderr[-300:]}")


if __name__ == "__main__":
    main({"installed": installed})
