"""Writes docs/settings.md: python -m tests.support.settings_page"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from monarch.config import settings
from monarch.config.layers import Setting

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"

HEAD = """# Settings

Made from `monarch/config/settings.py` by `python -m tests.support.settings_page`; a test says when it is not up to date.

```python
import monarch
from monarch.config import configured, get_global_config

# in this program, and in the processes that it starts from now on
monarch.configure(cleanup_timeout="10s", tail_log_lines=50)
print(get_global_config()["cleanup_timeout"])  # 10s

with configured(cleanup_timeout="1m"):  # and back at the end of the block
    print(get_global_config()["cleanup_timeout"])  # 1m

try:
    monarch.configure(clenup_timeout="3s")
except ValueError as error:
    print(error)  # invalid configuration key: `clenup_timeout`; did you mean `cleanup_timeout`? ...
monarch.configure(cleanup_timeout="3s", tail_log_lines=20)
```

What `configure` sets hides the environment variable, which hides the default. A process keeps the values with which it was
spawned. Durations are text, such as `"500ms"`, `"30s"` or `"1h 30m"`. `get_global_config()` has the values in force.
"""

INERT = """
## Accepted, without effect

Settings that programs may bring with them. They are kept and given back, and nothing reads them; a warning says so when one
is changed.

{names}
"""


def groups() -> dict[str, list[Setting]]:
    """The settings that are read, under the headings that the definitions have as comments."""
    by_name = {setting.name: setting for setting in settings.TABLE}
    found: dict[str, list[Setting]] = {}
    group: list[Setting] = []
    for line in inspect.getsource(settings).splitlines():
        if heading := re.fullmatch(r"# ([A-Z].*)", line):
            group = found.setdefault(heading[1], [])
        elif (row := re.match(r"(\w+) = ", line)) and row[1] in by_name:
            group.append(by_name[row[1]])
    return {heading: rows for heading, rows in found.items() if rows}


def default(setting: Setting) -> str:
    kept: Any = setting.kind.check(setting.default)
    shown = setting.kind.show(kept)
    if shown == "":
        return "empty"
    if type(shown) is not int:
        return f"`{shown if isinstance(shown, bool | None) else setting.kind.write(kept)}`"
    for size, unit in ((settings.GIB, "GiB"), (settings.MIB, "MiB"), (settings.KIB, "KiB")):
        if shown >= size and shown % size == 0:
            return f"`{shown}` ({shown // size} {unit})"
    return f"`{shown}`"


def page() -> str:
    text = HEAD
    for heading, rows in groups().items():
        text += f"\n## {heading}\n\n| name | default | variable | |\n|---|---|---|---|\n"
        for row in rows:
            variable = f"`{row.env}`" if row.env else ""
            doc = row.doc.replace("|", "\\|").replace("<", "&lt;")
            text += f"| `{row.name}` | {default(row)} | {variable} | {doc} |\n"
    inert = sorted(setting.name for setting in settings.TABLE if setting.inert)
    return text + INERT.format(names=", ".join(f"`{name}`" for name in inert))


if __name__ == "__main__":
    PAGE.write_text(page())
