"""Pages that show whole programs: a link to the file, and behind it a block with what is in the file.

    [programs/one.py](programs/one.py)

    ```python
    ...
    ```

`python -m tests.support.page_programs PAGE...` writes the blocks of the pages anew.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SHOWN = re.compile(r"^(\[(programs/\w+\.py)\]\(\2\)[^\n]*\n\n```[^\n]*\n)(.*?)^```$", re.MULTILINE | re.DOTALL)


def shown(page: Path) -> list[tuple[Path, str]]:
    """The files that a page shows, with the text that it shows of each."""
    return [(page.parent / name, text) for _, name, text in SHOWN.findall(page.read_text())]


def renewed(page: Path) -> str:
    """The page with what is in the files now."""
    return SHOWN.sub(lambda found: f"{found[1]}{(page.parent / found[2]).read_text()}```", page.read_text())


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(renewed(path))
