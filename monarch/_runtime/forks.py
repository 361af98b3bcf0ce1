"""The fate of a Proc when its program forks: the parent goes on, the child has none."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

from monarch._linux.weak_sets import members
from monarch._runtime import leader

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc


_CAME_BACK = 1  # status of a child that goes on where only its parent may
_all: weakref.WeakSet[Proc] = weakref.WeakSet()


def follow(proc: Proc) -> None:
    """Closes the links of `proc` in every child that is forked from now on."""
    _all.add(proc)


def unfollow(proc: Proc) -> None:
    """Takes note that `proc` has closed its links itself."""
    _all.discard(proc)


def close(descriptors: Iterable[int]) -> None:
    """The parent's, which may be in use there."""
    for fd in descriptors:
        try:
            os.close(fd)
        except OSError:
            pass


def end_child() -> NoReturn:
    """Ends a forked child whose endpoint has come to its end: nobody will ever send to this copy of the actor."""
    with contextlib.suppress(OSError):
        os.write(
            2, b"a child that an endpoint has made by os.fork came back from it, and ends here; call os._exit() in it\n"
        )
    os._exit(_CAME_BACK)


def _before_fork() -> None:
    for proc in members(_all):
        if proc.payloads is not None:
            proc.payloads.before_fork()


def _after_fork_in_child() -> None:
    for proc in members(_all):
        proc.forked()
        leader.lost = proc.closed


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
