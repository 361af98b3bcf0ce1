"""Folders that belong to who has locked the file `lock` in them: runs, and helpers."""

from __future__ import annotations

import os


def remove(path: str | os.PathLike[str]) -> None:
    """Removes a folder of this user alone, as far as that can be done, the file `lock` in it at the very end: who takes that
    next may make files in the folder at once, and these stay."""
    import shutil  # slow to import

    try:
        names = os.listdir(path)
    except OSError:
        return
    for name in sorted(names, key=lambda name: (name == "lock", name != "socket")):
        each = os.path.join(path, name)
        try:
            os.unlink(each)
        except IsADirectoryError:
            shutil.rmtree(each, ignore_errors=True)
        except OSError:
            pass
    try:
        os.rmdir(path)
    except OSError:  # the next one is in it
        pass
