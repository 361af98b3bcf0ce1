"""Runs that are kept, so that others can be compared with them."""

from __future__ import annotations

import os


def keep(folder: str | os.PathLike[str] = "runs", name: str = "") -> str:
    """Keeps what all processes of this program log, from its beginning on, as a run: FOLDER/NAME.json. Returns that path.

    To be called by the program, not in a process of a mesh. It starts telemetry, unless that runs. The file has each
    curve folded over ranks, in at most 512 points (beyond that they are of two steps, of four and so on), of up to 500
    curves; it is written each 5 s and at the end, for this user alone. `name`: by default the time; a run of that name
    which is there is gone on with, as after a checkpoint.

    ValueError for a name with other characters than letters, digits and `_.+=,@-`, for a file of that name that is no
    run, and when the program's run is kept elsewhere already. ImportError when DuckDB is not installed; RuntimeError in a
    process of a mesh, and when the folder cannot be written.

    Since 0.2.0.
    """
    from monarch.telemetry import runs, starting  # loads the client, which scripts do without

    where = os.path.abspath(folder)
    path = runs.path_of(where, name) if name else ""
    if path and os.path.lexists(path):
        runs.read_run(path)
    return starting.keep_run(where, name)
