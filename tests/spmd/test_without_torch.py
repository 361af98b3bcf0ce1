"""Errors where torch is not installed."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from monarch.actor import ActorError
from monarch.spmd import setup
from monarch.spmd.device_mesh import Ranks, torch_distributed


class _Missing:
    """Finds no torch."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {self._name!r}", name=self._name)


def hide_torch(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for module in [module for module in sys.modules if module.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [_Missing(name), *sys.meta_path])


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_torch(monkeypatch, "torch")
    with pytest.raises(
        ImportError, match=r"torch is not installed .*host .*interpreter .*pip install 'pymonarch\[torch\]'"
    ):
        Ranks().mesh(None, None)


def test_another_module_that_torch_lacks_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_torch(monkeypatch, "sympy")
    with pytest.raises(ModuleNotFoundError, match="No module named 'sympy'"):
        torch_distributed()


class _Actors:
    """Actors of a mesh of one, whose every call fails with an error of rank 0."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.extent = type("extent", (), {"labels": ()})

    def __getattr__(self, name: str) -> Any:
        raise self._error

    def stop(self) -> None:
        """Nothing to stop."""


class _Procs:
    """Processes whose actors fail."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def healthy(self, timeout: float) -> Any:
        raise NotImplementedError

    def spawn(self, name: str, cls: type) -> Any:
        return _Actors(self._error)


def test_the_error_of_the_set_up_is_one_line() -> None:
    missing = ImportError("torch is not installed where this rank runs: pip install 'pymonarch[torch]' there")
    procs: Any = _Procs(ActorError(missing, "Actor call torch-setup.open failed.", "its traceback"))
    with pytest.raises(RuntimeError) as caught:
        setup._distributed(procs, [], None, True, None, None, 1.0, "wait")
    assert str(caught.value) == f"the process group of 0 ranks was not set up: {missing}"
