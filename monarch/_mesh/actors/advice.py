"""What is added to exceptions of endpoints that say little to somebody who does not know where endpoints run."""

from __future__ import annotations

_NO_STDIN = "An endpoint runs in a process of its mesh, whose stdin is /dev/null: nobody can type there. "
_DEBUGGER = (
    f"{_NO_STDIN}To use a debugger, spawn the actor in the process of the program, this_proc().spawn(name, Class), where the "
    f"terminal is; or set PYTHONBREAKPOINT to a debugger that listens on a port. Where every endpoint is at the moment: "
    f"print(wait_graph().get())"
)
_INPUT = f"{_NO_STDIN}Read the input in the program, and pass it as an argument."


def advise(exc: BaseException) -> None:
    """Adds a note to an exception that an endpoint or constructor raised, if there is something to say."""
    kind = type(exc)
    text = ""
    if kind.__name__ == "BdbQuit" and kind.__module__ == "bdb":
        text = _DEBUGGER
    elif kind is EOFError and "reading a line" in str(exc):
        text = _INPUT
    if text and text not in getattr(exc, "__notes__", ()):
        exc.add_note(text)
