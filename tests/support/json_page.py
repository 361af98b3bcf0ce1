"""Writes docs/reference/json.md: python -m tests.support.json_page"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from monarch.tools import cli, documents
from tests.support import command_line_page

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/json.md"

HEAD = """# JSON of every verb

With `--json` a verb prints documents as JSON on stdout, one a line, and nothing else there. Notes for people, and what the
job's own file prints, go to stderr. `schema` says which document it is, and its version.

- **The last line** has `exit_status`, that of the command. Lines before it, of verbs that go on for a while, have none
  (but each line of `stacks --watch` is whole).
- **What fails** ends with `monarch.error/1`, whatever the verb. Its `kind` is a word of the table of
  [exit statuses](../cli.md#exit-statuses).
- **Versions.** A field may be added to a version: readers skip those that they do not know. One that goes, or comes to mean
  something else, makes the next version.
- **Units.** Time is seconds, sizes are bytes, points in time are seconds since 1970.

`python -m monarch.tools.documents` prints the same as a JSON Schema. Made from that module by
`python -m tests.support.json_page`; a test says when it is not up to date.
"""

WORDS = {str: "string", int: "integer", float: "number", bool: "true or false", type(None): "null", Any: "anything"}


def told(hint: Any) -> str:
    """A type, as readers of JSON call it."""
    if hint in WORDS:
        return WORDS[hint]
    arguments = get_args(hint)
    if get_origin(hint) in (types.UnionType, Union):
        return " or ".join(map(told, arguments))
    if get_origin(hint) is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in arguments)
    if get_origin(hint) is list:
        return f"list of {told(arguments[0])}"
    if get_origin(hint) is dict:
        return f"object of {told(arguments[1])}"
    return f"[{hint.__name__}](#{hint.__name__.lower()})"


def parts(hint: Any) -> Iterator[Any]:
    """The structs in a type."""
    if inspect.isclass(hint) and issubclass(hint, msgspec.Struct):
        yield hint
    for argument in get_args(hint):
        yield from parts(argument)


def section(title: str, one: Any) -> str:
    hints = get_type_hints(one)
    rows = [f"| `{field.name}` | {told(hints[field.name])} |\n" for field in msgspec.structs.fields(one)]
    text = inspect.getdoc(one).split("\n\n- ")[0].replace("<root>", "`<root>`")
    return f"\n### {title}\n\n{text}\n\n| field | |\n|---|---|\n{''.join(rows)}"


def page() -> str:
    order = ["error", *(name.split()[1] for name, _, _ in command_line_page.verbs(cli.get_parser()) if " " in name)]
    text = HEAD
    inner: list[Any] = []
    for verb in dict.fromkeys(order):
        mine = {name: one for name, one in documents.all_documents().items() if re.split("[./]", name)[1] == verb}
        text += f"\n## {verb}\n"
        text += "".join(section(name, one) for name, one in mine.items())
        if not mine:
            text += "\nTalks to people: with `--json` it is wrong usage.\n"
        inner += mine.values()
    text += "\n## Parts of documents\n"
    seen: list[Any] = []
    for one in inner:  # which grows
        for hint in get_type_hints(one).values():
            for part in parts(hint):
                if part not in seen:
                    seen.append(part)
                    inner.append(part)
    return text + "".join(section(one.__name__, one) for one in sorted(seen, key=lambda one: one.__name__))


if __name__ == "__main__":
    PAGE.write_text(page())
