"""How long do mounts take? 10,000 files of 4 KiB, and one file of 1 GiB, to hosts that are processes of this machine.

For each mode: until it is open, until all hosts have read everything, a refresh with nothing changed, with ten files changed
(five bytes, of the large file), and until it is closed. The floor is `cp -a` to each host's folder, one after the other.
Not part of run_all.py: a table goes to stdout.

    python benchmarks/mounts.py [--quick] [--hosts 2]
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from monarch.actor import attach_to_workers
from monarch.gather_mount import gather_mount
from monarch.remotemount import fuse_process
from monarch.remotemount.remotemount import remotemount

STEPS = ("open", "read all", "refresh, nothing new", "refresh, some new", "close")


@contextmanager
def workers(folder: Path, count: int) -> Iterator[Any]:
    """A mesh of so many hosts."""
    secret = secrets.token_hex(32)
    addresses = [f"ipc://{folder}/w{rank}" for rank in range(count)]
    command = [sys.executable, "-m", "monarch", "worker", "--address"]
    environment = os.environ | {"MONARCH_SECRET": secret, "PYTHONPATH": sys.path[0]}
    started = [subprocess.Popen([*command, address], env=environment, cwd=folder) for address in addresses]
    try:
        mesh = attach_to_workers(workers=addresses, secret=secret)
        mesh.initialized.get(60)
        yield mesh
        mesh.shutdown().get(60)
    finally:
        for process in started:
            process.terminate()
            process.wait()


def many_files(root: Path, count: int) -> Callable[[], None]:
    """`count` files in folders of a hundred; what is returned changes ten."""
    data = os.urandom(4096)
    for number in range(count):
        folder = root / f"d{number // 100}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"f{number}").write_bytes(data)

    def change() -> None:
        for number in range(0, count, max(count // 10, 1)):
            (root / f"d{number // 100}" / f"f{number}").write_bytes(os.urandom(4096))

    return change


def one_file(root: Path, size: int) -> Callable[[], None]:
    root.mkdir()
    with (root / "large").open("wb") as file:
        for _ in range(size >> 20):
            file.write(os.urandom(1 << 20))

    def change() -> None:
        with (root / "large").open("r+b") as file:
            file.seek(size // 2)
            file.write(os.urandom(5))

    return change


def read_all(points: list[Path]) -> int:
    total = 0
    for point in points:
        for folder, _, files in os.walk(point):
            for name in files:
                with open(os.path.join(folder, name), "rb", buffering=0) as file:
                    while data := file.read(1 << 20):
                        total += len(data)
    return total


def timed(step: Callable[[], object]) -> float:
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun


def remote(
    mesh: Any, source: Path, folder: Path, points: list[Path], mode: str, change: Callable[[], None]
) -> list[float]:
    mount = remotemount(mesh, str(source), str(folder / "$SUBDIR"), mode)
    taken = [timed(mount.open), timed(lambda: read_all(points)), timed(mount.refresh)]
    change()
    return [*taken, timed(mount.refresh), timed(mount.close)]


def gathered(
    mesh: Any, source: Path, folder: Path, points: list[Path], mode: str, change: Callable[[], None]
) -> list[float]:
    """All hosts have the same directory here."""
    begun = time.perf_counter()
    mount = gather_mount(mesh, str(source), str(folder), mode)
    taken = [time.perf_counter() - begun, timed(lambda: read_all(points)), timed(mount.refresh)]
    change()
    return [*taken, timed(mount.refresh), timed(mount.close)]


def copied(source: Path, points: list[Path]) -> list[float]:
    def copy() -> None:
        for point in points:
            subprocess.run(["cp", "-a", str(source), str(point)], check=True)

    return [timed(copy), timed(lambda: read_all(points))]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the files and of the bytes")
    parser.add_argument("--hosts", type=int, default=2)
    given = parser.parse_args()
    part = 10 if given.quick else 1
    modes = ["mirror"] if fuse_process.obstacle() else ["fuse", "mirror"]
    print(f"| {given.hosts} hosts | " + " | ".join(STEPS) + " |\n|---|" + "---|" * len(STEPS))
    folder = Path(tempfile.mkdtemp(prefix="mnb"))
    try:
        with workers(folder, given.hosts) as mesh:
            for what, make, size in (("files", many_files, 10_000 // part), ("GiB", one_file, (1 << 30) // part)):
                source = folder / what
                change = make(source, size)
                for name, run in (("remote", remote), ("gather", gathered)):
                    for mode in modes:
                        at = folder / f"{what}-{name}-{mode}"
                        points = [at / f"hosts_{rank}" for rank in range(given.hosts)]
                        show(f"{what}: {name}, {mode}", run(mesh, source, at, points, mode, change))
                        shutil.rmtree(at, ignore_errors=True)
                at = folder / f"{what}-floor"
                at.mkdir()
                show(f"{what}: cp -a", copied(source, [at / f"hosts_{rank}" for rank in range(given.hosts)]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def show(name: str, seconds: list[float]) -> None:
    print(f"| {name} | " + " | ".join(f"{taken:.2f} s" for taken in seconds) + " |", flush=True)


if __name__ == "__main__":
    main()
