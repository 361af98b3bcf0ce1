"""Who takes part: an interpreter, what must be in its environment, and why it cannot take part if it
cannot.
"""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parent
WORKLOADS = BENCHMARKS / "workloads"
ROOT = BENCHMARKS.parent


@dataclass(frozen=True)
class Contender:
    """`python` runs the contender's workloads; `skip` is the reason it cannot, and then nothing else matters.
    `probe` is a statement that works in it when everything is installed. `note` is shown with the results. `role` is whose
    workloads it runs, its own unless said; `root` is the checkout it measures, where it is one of ours."""

    name: str
    python: str = sys.executable
    env: Mapping[str, str] = field(default_factory=dict)
    probe: str = ""
    version: str = ""
    skip: str = ""
    note: str = ""
    role: str = ""
    root: Path = ROOT

    def environment(self) -> dict[str, str]:
        """The environment of the contender's processes: ours, less what would leak this interpreter's
        packages.
        """
        inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        path = [p for p in (self.env.get("PYTHONPATH"), str(WORKLOADS)) if p]
        return {**inherited, **self.env, "PYTHONPATH": os.pathsep.join(path)}

    def checked(self) -> Contender:
        """This contender, with `skip` set to what its probe said when it failed."""
        if self.skip or not self.probe:
            return self
        failure = import_failure(self, self.probe)
        return replace(self, skip=f"{self.probe}: {failure}") if failure else self


def import_failure(contender: Contender, statement: str) -> str:
    """What `statement` says last when it fails in the contender's interpreter; "" when it works."""
    # Not in the checkout's root: there `monarch` would be this tree for every contender.
    done = subprocess.run(
        [contender.python, "-c", statement],
        cwd=WORKLOADS,
        env=contender.environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def floors() -> tuple[Contender, ...]:
    """The contenders that are our own few lines on the standard library: what the operating system allows."""
    return (
        Contender("socket", note="raw Unix-socket ping-pong"),
        Contender("floor", note="the least that does the job with the standard library"),
    )


def ours() -> Contender:
    """This checkout, run by the interpreter that runs the benchmark."""
    return checkout("ours", ROOT, "this checkout")


def base(root: Path) -> Contender:
    """Another checkout of ours, of which the same is asked."""
    return replace(checkout("base", root.resolve(), f"the checkout in {root}"), role="ours")


def checkout(name: str, root: Path, version: str) -> Contender:
    """A checkout, compiled as pip leaves a package; and the modules that its processes import of ours."""
    for folder in (root / "monarch", WORKLOADS):
        compileall.compile_dir(folder, quiet=2)
    return Contender(
        name,
        env={"PYTHONPATH": str(root)},
        probe="from monarch.actor import this_host",
        version=version,
        root=root,
    ).checked()


def torch_site() -> str:
    """The site-packages folder of this interpreter's torch, or "" when it has none.

    Peers import torch from there, so that everybody measures with the same build and none is installed
    twice.
    """
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')",
        ],
        cwd=WORKLOADS,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    ).stdout.strip()
    return str(Path(found).parent.parent) if found else ""
