"""The tests that touch other packages, each of which is at its lower bound of pyproject.toml: python -m tests.support.lowest

In an environment of its own, `.venv-lowest`, which is made anew when the bounds have changed. Words behind it go to pytest in
place of TESTS.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".venv-lowest"
LEFT_OUT = {
    "torch": "it is the one of this environment; docs/versions.md says what ran on which release",
    "rdma-nixl": "without a device it does nothing",
    "rdma-verbs": "without a device it does nothing",
    "ray": "large, and its tests are those of `make test-ray`",
    "skypilot": "large, and its tests have a stand-in",
}
TOOLS = ("httpx", "hypothesis", "numpy", "pytest", "pytest-xdist")  # of the extra `dev`, as there
TESTS = {
    "cloudpickle, msgspec": [
        "tests/_wire",
        "tests/_runtime",
        "tests/testing",
        "tests/procs/test_payloads.py",
        "tests/procs/test_serialization.py",
    ],
    "notebook": ["tests/procs/test_notebooks.py"],
    "tls": ["tests/tools/test_certs.py", "tests/procs/test_tls_addresses.py"],
    "completion": ["tests/job/test_command_line.py"],
    "fuse": ["tests/remotemount"],
    "kubernetes": ["tests/kube"],
    "admin, tui": ["tests/admin"],
    "dashboard, telemetry, otel, gpu-metrics": ["tests/dashboard", "tests/telemetry", "tests/trace/test_programs.py"],
    "debug": ["tests/debugger"],
}
# Not what takes long, nor what needs more than this environment has.
WITHOUT = "not full and not slow and not device and not lab and not browser and not ray and not models"
_BOUND = re.compile(r"([A-Za-z0-9_.-]+)>=([0-9.]+)")


def bounds(project: dict[str, object]) -> Iterator[str]:
    """The requirements of the package and its extras, each at its lower bound. ValueError for one without."""
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict) and isinstance(project["dependencies"], list)
    wanted = {"": project["dependencies"], **{name: of for name, of in extras.items() if not name.startswith("dev")}}
    for extra, requirements in wanted.items():
        if extra in LEFT_OUT:
            continue
        for requirement in requirements:
            if requirement.startswith("pymonarch["):
                continue
            bound = _BOUND.fullmatch(requirement)
            if bound is None:
                raise ValueError(
                    f"{requirement!r} of {extra or 'dependencies'} in pyproject.toml has no lower bound NAME>=VERSION"
                )
            yield f"{bound[1]}=={bound[2]}"


def make(project: dict[str, object]) -> None:
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    tools = [requirement for requirement in extras["dev"] if requirement.partition("==")[0] in TOOLS]
    words = [*bounds(project), *tools]
    ready = FOLDER / ".ready"
    stamp = hashlib.sha256("\n".join([sys.version, *words]).encode()).hexdigest()
    if ready.exists() and ready.read_text() == stamp:
        return
    for extra, why in LEFT_OUT.items():
        print(f"test-lowest: without the extra {extra}: {why}")
    print(f"test-lowest: installing {' '.join(words)} into {FOLDER.name}", flush=True)
    venv.create(FOLDER, clear=True, with_pip=True)
    pip = [str(FOLDER / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *words], check=True)
    # Beside the bounds, and held to them: what pyproject.toml asks for has to be there.
    here = ",".join(extra for extra in extras if extra not in LEFT_OUT and not extra.startswith("dev"))
    subprocess.run([*pip, "--editable", f"{ROOT}[{here}]", *words], check=True)
    # For tests that have torch for something else. What is installed here comes before it on sys.path.
    [site] = FOLDER.glob("lib/python*/site-packages")
    (site / "beside.pth").write_text(sysconfig.get_path("purelib"))
    ready.write_text(stamp)


def main(words: list[str]) -> int:
    make(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    tests = words or [path for paths in TESTS.values() for path in paths]
    options = ["-q", "-p", "no:cacheprovider", "--hypothesis-profile", "quick"]
    command = [str(FOLDER / "bin/python"), "-m", "pytest", *options, "-m", WITHOUT, *tests]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
