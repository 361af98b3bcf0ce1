"""The only reach upwards: what outer layers and programs may put into the trunk, by name, looked up when needed."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

from monarch._runtime.context import here, start_client_with

_on_client_started: list[Callable[[Any], Any]] = []


def when_client_starts(fn: Callable[[Any], Any]) -> None:
    """`fn(client)` once this process has become a client; at once is not promised."""
    _on_client_started.append(fn)


def client_started(client: Any) -> None:
    for fn in list(_on_client_started):
        fn(client)


_on_client_ending: list[Callable[[], Any]] = []


def when_client_ends(fn: Callable[[], Any]) -> None:
    """`fn()` when the client of this process ends in order, its processes having ended, and can still send."""
    _on_client_ending.append(fn)


def client_ending() -> None:
    for fn in list(_on_client_ending):
        try:
            fn()
        except Exception as exc:  # of a face; the program ends all the same
            logging.getLogger("monarch").debug("at the end of the client: %s", exc)


_end_client: Callable[[float], Any] | None = None


def end_client_with(fn: Callable[[float], Any]) -> None:
    """`fn(timeout)` ends the client of this process, if it has one; returns when it has ended, or cannot be ended in time."""
    global _end_client
    _end_client = fn


def end_client(timeout: float) -> None:
    if _end_client is not None:
        _end_client(timeout)


def _load_and_start() -> Any:
    """What runs a client is loaded with the first one. `actor` as well: where something of ours was unpickled, that has
    brought its own file only."""
    load("actor")
    load("_mesh.process.client")
    return here()


start_client_with(_load_and_start)  # until `process.client` says how


def load(name: str) -> Any:
    """A module of an outer layer, loaded when something of it is first used. ImportError names what is not installed."""
    try:
        return importlib.import_module(f"monarch.{name}")
    except ModuleNotFoundError as exc:
        if exc.name == "torch":
            raise ImportError(
                "distributed tensors need torch: pip install 'pymonarch[torch]' here and in the workers", name="torch"
            ) from None
        raise
