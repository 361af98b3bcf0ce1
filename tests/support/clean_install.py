"""The wheel and the sdist, used as somebody who has nothing else: python -m tests.support.clean_install dist

In an environment of its own: the wheel installs with its two dependencies, torch is neither needed nor imported, the first
program of README runs and prints what README says, and the command answers, shows its demonstration, and makes a project
that runs. The sdist gives the same wheel. Prints what it looked at; ends with status 1 at the first thing that is wrong.

Needs nothing but Python: `make publish-check` runs it in empty systems.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

from tests.support.pages import blocks
from tests.support.printed import broken
from tests.support.recording import FIRST_LINE, recorded

ROOT = Path(__file__).resolve().parents[2]
NEEDED = {"cloudpickle", "msgspec", "pymonarch"}
TOOLS = {"pip", "setuptools"}  # what an environment has from the start
IN_WHEEL = [
    "monarch/py.typed",
    "monarch/__init__.pyi",
    "monarch/_older_paths/fetch.py",
    "monarch-stubs/fetch.pyi",
    "monarch/dashboard/static/index.html",
    "monarch/tools/SKILL.md",
]
IN_SDIST = ["pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "Makefile", "docs/conf.py", "examples/ddp.py"]
TIMEOUT = 300


class Wrong(Exception):
    """A fault of a distribution."""


def only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise Wrong(f"{folder} has {len(found)} files {pattern}, expected 1: run `make dist`")
    return found[0]


def check_wheel(names: list[str]) -> None:
    """It has the package, its stubs, and nothing else."""
    others = sorted({name.split("/")[0] for name in names if not name.startswith(("monarch/", "monarch-stubs/"))})
    if len(others) != 1 or not others[0].endswith(".dist-info"):
        raise Wrong(f"the wheel holds more than the package: {others}")
    for wanted in IN_WHEEL:
        if wanted not in names:
            raise Wrong(f"the wheel lacks {wanted}")
    compiled = [name for name in names if name.endswith((".pyc", ".so"))]
    if compiled:
        raise Wrong(f"the wheel holds {compiled[0]}, which belongs to this machine")


def check_sdist(names: list[str]) -> None:
    """It has what `make test` and `make site` need."""
    inside = {name.partition("/")[2] for name in names}
    for wanted in IN_SDIST:
        if wanted not in inside:
            raise Wrong(f"the sdist lacks {wanted}")
    for unwanted in ("docs/_site", "benchmarks/out", ".venv"):
        if any(name == unwanted or name.startswith(unwanted + "/") for name in inside):
            raise Wrong(f"the sdist holds {unwanted}")


def first_program(page: str) -> str:
    """The first block of Python, each line at the number it has in the page."""
    block = next(block for block in blocks(page) if block.words == ["python"])
    return "\n" * (block.line - 1) + block.text


def run(*words: str, cwd: Path) -> str:
    """Its output; without what this process's environment would add to it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MONARCH_"))}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        raise Wrong(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def check_environment(wheel: Path, folder: Path) -> None:
    """The wheel in an environment of its own in `folder`."""
    venv.create(folder / "env", with_pip=True)
    python, command = folder / "env" / "bin" / "python", folder / "env" / "bin" / "monarch"
    pip = str(python), "-m", "pip", "--disable-pip-version-check"
    run(*pip, "install", "--quiet", str(wheel), cwd=folder)
    installed = {line.split("==")[0].lower() for line in run(*pip, "list", "--format=freeze", cwd=folder).split()}
    if installed - TOOLS != NEEDED:
        raise Wrong(f"installed are {sorted(installed)}, wanted {sorted(NEEDED)}")
    print("installed:", ", ".join(sorted(installed - TOOLS)))
    print(run(str(command), "--version", cwd=folder).strip())
    text = first_program((ROOT / "README.md").read_text())
    script, notes = folder / "program.py", folder / "printed"
    script.write_text(FIRST_LINE.format(str(notes)) + text)  # whose first line is empty
    # Kept apart from this checkout: what the program imports to note its prints lies there, and the package must not.
    (folder / "tests").symlink_to(ROOT / "tests")
    (folder / "where.py").write_text(
        "import monarch.actor, monarch.experimental, sys; print(monarch.__file__, 'torch' in sys.modules)"
    )
    where, torch = run(str(python), "where.py", cwd=folder).split()
    if not where.startswith(str(folder)) or torch != "False":
        raise Wrong(f"the package is {where}; torch imported: {torch}")
    run(str(python), str(script), cwd=folder)
    wrong = broken(text, recorded(notes))
    if wrong:
        raise Wrong(f"the first program of README: {wrong}")
    print("the first program of README prints what it says")


def check_first_steps(folder: Path) -> None:
    """Do what README has a newcomer type, with the environment in `folder`."""
    python, command = str(folder / "env" / "bin" / "python"), str(folder / "env" / "bin" / "monarch")
    run(command, "demo", cwd=folder)
    print("monarch demo ends well")
    run(command, "init", "project", cwd=folder)
    last = run(python, "train.py", cwd=folder / "project").splitlines()[-1]
    print("the program of monarch init ends with:", last)


def check_source(wheel: Path, sdist: Path, folder: Path) -> None:
    """The wheel that the sdist gives has the files of the other."""
    python = str(folder / "env" / "bin" / "python")
    pip = python, "-m", "pip", "--disable-pip-version-check"
    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", "again", str(sdist), cwd=folder)
    names = []
    for path in (wheel, only(folder / "again", "*.whl")):
        with zipfile.ZipFile(path) as files:
            names.append(set(files.namelist()))
    if names[0] != names[1]:
        raise Wrong(f"the sdist gives another wheel: {sorted(names[0] ^ names[1])[:10]}")
    print(f"the sdist gives a wheel of the same {len(names[0])} files")


def main(dist: Path) -> int:
    try:
        wheel, sdist = only(dist, "*.whl"), only(dist, "*.tar.gz")
        with zipfile.ZipFile(wheel) as files:
            check_wheel(files.namelist())
        with tarfile.open(sdist) as archive:
            check_sdist(archive.getnames())
        with tempfile.TemporaryDirectory() as folder:
            check_environment(wheel.resolve(), Path(folder))
            check_first_steps(Path(folder))
            check_source(wheel.resolve(), sdist.resolve(), Path(folder))
    except Wrong as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1
    print(f"dist: {wheel.name} and {sdist.name} are fit for use")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
