"""Ways of `breakpoint()` and `pdb.set_trace()`: in code that an actor runs to the program's debugger (`monarch.debugger`),
elsewhere to Python's own.

Nothing of the debugger is loaded before the first of them is reached.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from monarch._mesh import plugins
from monarch._mesh.actors.behaviour import ActorBehaviour
from monarch._runtime.context import current, home, root_of
from monarch.config import settings

if TYPE_CHECKING:
    from monarch._runtime.instance import Instance
    from monarch._wire.message import Call

_installed = False
_passed_over = False


def install() -> None:
    """Installs the hooks in a process of a mesh, and in the root client when it gets an actor of the program. A hook
    that the program, or an editor, has set stays."""
    global _installed
    if _installed:
        return
    _installed = True
    if sys.breakpointhook is sys.__breakpointhook__:
        sys.breakpointhook = _hook
        _take_set_trace()
    stop_on_exceptions(settings.debug_on_exception())


def _hook(*args: Any, **kwargs: Any) -> Any:
    chosen = os.environ.get("PYTHONBREAKPOINT", "")
    if chosen == "0":
        return None
    if chosen not in ("", "pdb.set_trace"):
        return sys.__breakpointhook__(*args, **kwargs)  # noqa: T100
    return _stop(sys._getframe(1), *args, **kwargs)


def _set_trace(*args: Any, **kwargs: Any) -> Any:
    """`pdb.set_trace` in processes that have actors."""
    return _stop(sys._getframe(1), *args, **kwargs)


def _stop(frame: FrameType, *, header: str | None = None, commands: list[str] | None = None) -> None:
    running = current.get()
    if running is not None and running.instance.behaviour is not None:
        plugins.outer("debugger.stop")(frame, header)
        return
    proc = home()
    if proc is None or root_of(proc) is not None:  # the program itself
        import pdb  # noqa: T100

        own = pdb.Pdb()
        if header is not None:
            own.message(header)
        own.set_trace(frame)
        return
    global _passed_over
    if not _passed_over:
        _passed_over = True
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        print(
            f"monarch: the breakpoint at {where} is passed over: its thread belongs to no actor. Start the thread with "
            f"target=monarch.actor.bind_context(fn)",
            file=sys.stderr,
            flush=True,
        )


# --- pdb.set_trace


def _take_set_trace() -> None:
    """Now if pdb is loaded, else when it is: it takes long to load, and few programs need it."""
    loaded = sys.modules.get("pdb")
    if loaded is not None:
        _change(loaded)
    elif not any(isinstance(finder, _PdbFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PdbFinder())


class _PdbFinder:
    """Finds pdb where it is, and changes one function of it once it is loaded."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "pdb":
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            loader = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _change(module)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _change(pdb: ModuleType) -> None:
    """One that others have put there, as pytest does, stays."""
    if getattr(getattr(pdb, "set_trace", None), "__module__", "") == "pdb":
        pdb.set_trace = _set_trace  # type: ignore[attr-defined]


# --- exceptions


class _OnException:
    """Every endpoint that raises stops where it did, if somebody comes to look."""

    def returned(self, instance: Instance, call: Call, error: BaseException | None) -> None:
        if error is not None:
            plugins.outer("debugger.stop_at")(instance, call, error)


def stop_on_exceptions(on: bool) -> None:
    """Turns that on or off in this process, from now on."""
    ActorBehaviour.debugging = _OnException() if on else None


def debug_controller() -> Any:
    """The actor in the root client's process that has the program's breakpoints; made by the first call.

    Its endpoints: `list(print_output=True)` gives a DebugSessionInfo for each endpoint that stands at a breakpoint, and
    prints them as a table; `wait_pending_session()` returns when there is one. Works in every process of a program.
    """
    return plugins.outer("debugger.controller")()
