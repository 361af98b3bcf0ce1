"""Exit statuses of the command `monarch`: the one table of them, and which of them an exception means.

`run`, `exec` and `shell` end with the status of what they ran, which may be any. With `--json` it can be told apart: what
they ran is in `monarch.exec/1` and its like, a failure of the command itself in `monarch.error/1`. Numbers from 66 on
are those of sysexits.h.
"""

from __future__ import annotations

DONE, FAILED, USAGE, DIVERGED = 0, 1, 2, 3
NOT_FOUND, UNREACHABLE, TIMED_OUT, NOT_PERMITTED, INTERRUPTED = 66, 69, 75, 77, 130

# status: (the word for it in JSON, what it means)
MEANINGS = {
    DONE: ("done", "done"),
    FAILED: (
        "failed",
        "an error of another kind, such as a value that an option cannot have; or what was looked at is not well (`doctor`, "
        "`status`, `tui --diagnose`)",
    ),
    USAGE: ("usage", "wrong usage: an option or argument that there is not"),
    DIVERGED: ("diverged", "`replay`: it went another way than when it was recorded"),
    NOT_FOUND: ("not_found", "no such job, context, mesh, program, file or package, or no job or program runs"),
    UNREACHABLE: ("unreachable", "a host or a program does not answer, or has ended"),
    TIMED_OUT: ("timed_out", "no answer in time; it may come later"),
    NOT_PERMITTED: ("not_permitted", "not allowed: files of others, or that others may write"),
    INTERRUPTED: ("interrupted", "Ctrl-C"),
}


def of(error: BaseException) -> int:
    """Returns the exit status with which the command ends for this exception."""
    from monarch._errors import NotFoundError, SupervisionError

    # The order matters: a time limit and a lost connection are OSErrors, too.
    kinds: tuple[tuple[tuple[type[BaseException], ...], int], ...] = (
        ((KeyboardInterrupt,), INTERRUPTED),
        ((TimeoutError,), TIMED_OUT),
        ((ConnectionError, SupervisionError), UNREACHABLE),
        ((PermissionError,), NOT_PERMITTED),
        ((NotFoundError, FileNotFoundError, ModuleNotFoundError), NOT_FOUND),
    )
    return next((status for types, status in kinds if isinstance(error, types)), FAILED)
