"""Tests of what unpickling imports, and in which order."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import pytest

from monarch._wire import codec
from monarch._wire.unpickling import loads

# Notes which of its modules are being imported, by anyone, while the package itself is: those that another thread, which
# imports the package, would wait for.
_PACKAGE = """
import importlib._bootstrap
held = [name for name in importlib._bootstrap._module_locks if name.startswith(__name__ + ".")]
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package with a package and a module in it, not imported yet."""
    inner = tmp_path / "unpickled_package" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner.parent, inner):
        (folder / "__init__.py").write_text(_PACKAGE)
    (inner / "module.py").write_text("class A:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "unpickled_package"
    for name in [name for name in sys.modules if name.startswith("unpickled_package")]:
        del sys.modules[name]


def named(module: str, name: str) -> bytes:
    """The pickle of what has that name there."""
    parts = [bytes([0x8C, len(text)]) + text.encode() for text in (module, name)]
    return b"\x80\x05" + b"".join(parts) + b"\x93."


def of_a_class(package: str) -> bytes:
    return named(f"{package}.inner.module", "A")


def of_a_function_that_names_a_module(package: str) -> bytes:
    sub = named("cloudpickle.cloudpickle", "subimport")[2:-1]
    text = f"{package}.inner.module"
    return b"\x80\x05" + sub + bytes([0x8C, len(text)]) + text.encode() + b"\x85R."


@pytest.mark.parametrize("body", [of_a_class, of_a_function_that_names_a_module])
def test_packages_are_imported_before_the_modules_in_them(package: str, body: Callable[[str], bytes]) -> None:
    """So that no thread holds a module that the import of its package, in another thread, may wait for."""
    found = codec.decode(body(package))
    assert found.__name__ in ("A", f"{package}.inner.module")
    assert sys.modules[package].held == []
    assert sys.modules[f"{package}.inner"].held == []


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bodies_of_any_kind(kind: type, package: str) -> None:
    for value in [(1, "\x93"), {"a": [Path("x")]}, b"\x93", "plain"]:
        assert loads(kind(pickle.dumps(value, 5))) == value
    data = bytearray(5000)
    pieces: list[pickle.PickleBuffer] = []
    body = pickle.dumps([Path("x"), pickle.PickleBuffer(data)], 5, buffer_callback=pieces.append)
    assert memoryview(loads(kind(body), pieces)[1]).obj is data


def test_a_function_that_is_sent_whole_names_modules_as_cloudpickle_does() -> None:
    import xml.dom.minidom as module

    assert loads(cloudpickle.dumps(lambda: module))() is module


def test_what_is_missing_is_named(package: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{package}.missing'"):
        loads(named(f"{package}.missing.module", "A"))
    with pytest.raises(AttributeError, match="B"):
        loads(named(f"{package}.inner.module", "B"))
