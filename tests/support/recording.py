"""Records what the program that calls `record` prints, and at which of its lines."""

from __future__ import annotations

import builtins
import io
import json
import sys
from pathlib import Path
from typing import Any

from tests.support.printed import Printed

# A program's first line, so that all its other lines keep their numbers.
FIRST_LINE = "from tests.support.recording import record; record({!r})"


def record(file: str) -> None:
    """From here on each `print` to stdout of the file that calls this is noted in `file`, one a line."""
    script = sys._getframe(1).f_code.co_filename
    plain = builtins.print

    def noting(*values: Any, **options: Any) -> None:
        caller = sys._getframe(1)
        if caller.f_code.co_filename == script and options.get("file") in (None, sys.stdout):
            text = io.StringIO()
            plain(*values, **{key: value for key, value in options.items() if key in ("sep", "end")}, file=text)
            with open(file, "a") as notes:
                notes.write(json.dumps([caller.f_lineno, text.getvalue().removesuffix("\n")]) + "\n")
        plain(*values, **options)

    builtins.print = noting


def recorded(file: Path) -> list[Printed]:
    return [Printed(*json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
