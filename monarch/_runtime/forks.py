"""What becomes of a Proc when its program forks: the parent goes on, the child has none."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc


_all: weakref.WeakSet[Proc] = weakref.WeakSet()


def follow(proc: Proc) -> None:
    """Closes the links of `proc` in every child that is forked from now on."""
    _all.add(proc)


def close(descriptors: Iterable[int]) -> None:
    """The parent's, which may be in use there."""
    for fd in descriptors:
        try:
            os.close(fd)
        except OSError:
            pass


def _before_fork() -> None:
    for proc in list(_all):
        if proc.payloads is not None:
            proc.payloads.before_fork()


def _after_fork_in_child() -> None:
    for proc in list(_all):
        proc.forked()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
