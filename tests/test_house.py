"""Tests that what the documentation says of the code is so, files stay short enough to be read, and a name means one
thing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.files_by_name import PLACES, places, places_in

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "monarch"
PAGES = ("CONTRIBUTING.md", "docs/architecture.md", "docs/internals.md")

MOST_LINES = 600
REASON = f"Over {MOST_LINES} lines because"

# Classes that share a name, and why they may. This list only shrinks.
SAME_NAME = {
    "JobState": "monarch.tools.mesh_spec, which older programs import, has one as well: both are public",
}

# A docstring is a sentence: of a function with a verb first, of a class or module with a noun.
FRAGMENT = re.compile(r"(What|Whatever|Whether|Of|Where|As|That|Those|Who|Whoever|Whose|Which|When|How|Why)\b")
QUOTED_FRAGMENT = re.compile(r"[\"']\s*" + FRAGMENT.pattern)

# `_mesh/actors/endpoint.py: Endpoint.call` or `_mesh/actors/endpoint.py`, as the pages name code.
REFERENCE = re.compile(r"`((?:\w+/)*\w+\.py)(?:: ([\w., ]+))?`")
PLAIN_LOCK = re.compile(r"^([^=\n]+)=.*\bthreading\.(?:R?Lock|Condition)\(", re.MULTILINE)
LINK = re.compile(r"\]\(([\w/.-]+)\)")
FOLDER = re.compile(r"`((?:_?[a-z]\w*/)+)`")


def references(page: Path) -> list[tuple[str, str]]:
    """(file, name in it or "") of each piece of code that the page names."""
    found = []
    for file, names in REFERENCE.findall(page.read_text()):
        found += [(file, name.strip()) for name in (names or "").split(",")]
    return found


def located(file: str) -> Path | None:
    """Returns where a file lies that pages name by its path in the package, or in the project."""
    return next((base / file for base in (PACKAGE, ROOT) if (base / file).is_file()), None)


def defined(path: Path) -> set[str]:
    """The functions, classes, methods and constants of a module, `Class.method` for what is in a class."""
    names: set[str] = set()

    def take(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.ClassDef(name=name):
                    names.add(prefix + name)
                    take(node.body, f"{prefix}{name}.")
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    names.add(prefix + name)
                case ast.Assign(targets=targets):
                    names.update(prefix + target.id for target in targets if isinstance(target, ast.Name))
                case ast.AnnAssign(target=ast.Name(id=name)):
                    names.add(prefix + name)

    take(ast.parse(path.read_text()).body, "")
    return names


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_exists(page: str) -> None:
    wrong = []
    for file, name in references(ROOT / page):
        path = located(file)
        if path is None:
            wrong.append(f"{file}: no such file")
        elif name and name not in defined(path):
            wrong.append(f"{file}: {name} is not defined there")
    for folder in FOLDER.findall((ROOT / page).read_text()):
        if not any((base / folder).is_dir() for base in (PACKAGE, ROOT)) and not list(PACKAGE.glob(f"*/{folder}")):
            wrong.append(f"{folder}: no such folder")
    for link in LINK.findall((ROOT / page).read_text()):
        if not ((ROOT / page).parent / link).exists():
            wrong.append(f"{link}: leads nowhere")
    assert wrong == []


def test_the_pages_name_code() -> None:
    assert len(references(ROOT / "docs/architecture.md")) > 40
    assert len(references(ROOT / "CONTRIBUTING.md")) > 15


def test_every_room_is_on_the_page() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    rooms = [folder.parent for part in ("_mesh", "tensor") for folder in (PACKAGE / part).glob("*/__init__.py")]
    assert [room.name for room in rooms if f"{room.name}/" not in page] == []


def test_a_long_file_says_why() -> None:
    long = [path for path in PACKAGE.rglob("*.py") if len(path.read_text().splitlines()) > MOST_LINES]
    silent = [
        str(path.relative_to(ROOT))
        for path in long
        if REASON not in (ast.get_docstring(ast.parse(path.read_text())) or "")
    ]
    assert silent == []


def test_no_two_classes_have_one_name() -> None:
    """In all of monarch: who searches for a class finds one."""
    files: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                files.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    shared = {name: where for name, where in files.items() if len(where) > 1}
    assert {name: where for name, where in shared.items() if name not in SAME_NAME} == {}
    assert SAME_NAME.keys() <= shared.keys(), "names that no longer need to be excepted"


def test_docstrings_are_sentences() -> None:
    fragments = []
    for path in sorted([*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]):
        source = path.read_text()
        if not QUOTED_FRAGMENT.search(source):  # parsing all of them takes seconds
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if FRAGMENT.match(text):
                    fragments.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}")
    assert fragments == []


def test_files_are_opened_by_name_in_one_place() -> None:
    """Checks that what somebody else could have put under a name is told from what he could not by private_files alone."""
    known = [place for places in PLACES.values() for place in places]
    found = places(PACKAGE)
    assert sorted(found - {*known}) == [], "open it by monarch/_linux/private_files.py"
    assert sorted({*known} - found) == [], "no longer there: take it out of tests/support/files_by_name.py"
    assert len(known) == len({*known})


@pytest.mark.parametrize(
    ("source", "called"),
    [
        ("open(path)", ["module: open"]),
        ("def f():\n    os.open(path, 0)", ["f: os.open"]),
        ("import os\nclass A:\n    def f(self):\n        os.open(path, 0)", ["A.f: os.open"]),
        ("from os import open as o\no(path)", ["module: os.open"]),
        ("import pickle as p\np.loads(data)", ["module: pickle.loads"]),
        ("import tempfile\ntempfile.mkstemp()", ["module: tempfile.mkstemp"]),
        ("Path(x).read_text()", ["module: .read_text"]),
        ("open('/etc/x')", ["module: open"]),
        ("import os\nos.open('.monarch/job_state.pkl', 0)", ["module: os.open"]),
        ("Path(x).open('rb'); path.open(encoding='utf-8')", ["module: .open", "module: .open"]),
        ("import duckdb\nduckdb.connect(path)", ["module: duckdb.connect"]),
        ("import importlib, ctypes\nimportlib.import_module('torch')\nctypes.CDLL('libcuda.so.1')", []),
        ("import ctypes\nctypes.CDLL('./libcuda.so.1')", ["module: ctypes.CDLL"]),
        ("from importlib import import_module\nimport_module(name)", ["module: importlib.import_module"]),
        ("open('/proc/self/maps'); open(f'/proc/{pid}/stat'); open(0)", []),
        ("import os\nos.open(os.devnull, 0)", []),
        ("from monarch._linux import private_files\nopen(private_files.open_log(path))", []),
        ("import importlib\nimportlib.import_module(f'monarch.{name}')", []),
        ("webbrowser.open(url); self.open(path)", []),
        ("Path(x).open(); (folder / 'x').open(); handle.open()", ["module: .open", "module: .open"]),
        (
            "import shutil as s\ns.rmtree(path); s.unpack_archive(path)",
            ["module: shutil.rmtree", "module: shutil.unpack_archive"],
        ),
        ("import numpy as np\nnp.load(x); np.save(x, a)", ["module: numpy.load", "module: numpy.save"]),
        ("import torch\ntorch.load(x); torch.save(a, x)", ["module: torch.load", "module: torch.save"]),
        ("from zipfile import ZipFile\nZipFile(x)", ["module: zipfile.ZipFile"]),
        (
            "import sqlite3, runpy\nsqlite3.connect(x); runpy.run_path(x)",
            ["module: sqlite3.connect", "module: runpy.run_path"],
        ),
        (
            "from importlib.machinery import SourceFileLoader as L\nL(n, x)",
            ["module: importlib.machinery.SourceFileLoader"],
        ),
        (
            "import importlib.util as u\nu.spec_from_file_location(n, x)",
            ["module: importlib.util.spec_from_file_location"],
        ),
        (
            "import os\nos.rename(a, b); os.mkdir(a, dir_fd=f); os.execv(a, [])",
            ["module: os.rename", "module: os.execv"],
        ),
        ("import subprocess\nsubprocess.run([program]); subprocess.run(words)", ["module: subprocess.run"] * 2),
        ("import subprocess, sys\nsubprocess.run(['ssh', x]); subprocess.run([sys.executable, x])", []),
    ],
)
def test_what_opens_by_name_is_seen(source: str, called: list[str]) -> None:
    assert list(places_in(source)) == called


def test_a_program_begins_when_all_of_its_file_is_there() -> None:
    """Finds what stands below `if __name__ == "__main__"`, which is not defined yet when the program runs."""
    below = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if '__name__ == "__main__"' in text:
            *before, _ = ast.parse(text).body
            if any(isinstance(node, ast.If) and "'__main__'" in ast.unparse(node.test) for node in before):
                below.append(str(path.relative_to(ROOT)))
    assert below == []


def test_what_a_handler_of_signals_raises_leaves_no_lock_locked() -> None:
    plain = [
        f"{path.relative_to(ROOT)}: {name}" for path in PACKAGE.rglob("*.py") for name in entered(path.read_text())
    ]
    assert plain == [], "for `with`, take Lock, RLock or Condition of monarch/_linux/locks.py"


def test_what_threads_run_is_asked_in_one_place() -> None:
    files = {*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")} - {Path(__file__).resolve()}
    asking = {file.name for file in files if "sys._current_frames(" in file.read_text()}
    assert asking == {"thread_frames.py", "test_thread_frames.py"}, "it asks so that it cannot stop the interpreter"


def entered(source: str) -> list[str]:
    """Returns the names of threading's locks and conditions that a `with` of the file takes."""
    names = [
        name.partition(":")[0].split(".")[-1].strip()
        for target in PLAIN_LOCK.findall(source)
        for name in target.split(",")
    ]
    return [name for name in names if re.search(rf"^ *with .*\b{name}\b", source, re.MULTILINE)]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("a = threading.Lock()\nwith a: pass", ["a"]),
        ("self._a: Any = threading.RLock()\nwith tracing, self._a: pass", ["_a"]),
        ("a, b = None, threading.Condition(lock)\nwith b: pass", ["b"]),
        ("a = threading.Lock()\na.acquire()", []),
        ("a = Lock()\nwith a: pass", []),
    ],
)
def test_a_lock_that_with_takes_is_seen(source: str, names: list[str]) -> None:
    assert entered(source) == names
