"""Writes docs/reference/command-line.md: python -m tests.support.command_line_page"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from monarch.tools import cli

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/command-line.md"

HEAD = """# Every verb and flag

What `monarch VERB --help` says, without its examples. [The command line](../cli.md) is the guide.

Made from the command's own parser by `python -m tests.support.command_line_page`; a test says when it is not up to date.
"""

Actions = list[argparse.Action]


def verbs(parser: argparse.ArgumentParser, name: str = "monarch", said: str = "") -> Iterator[tuple[str, str, Actions]]:
    """(full name, what it does, arguments) of each verb, and of the verbs of verbs."""
    plain: Actions = []
    inner: list[argparse.Action] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            inner.append(action)
        elif not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS:
            plain.append(action)
    yield name, said, plain
    for action in inner:
        assert isinstance(action, argparse._SubParsersAction)
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for verb, parser_of_verb in action.choices.items():
            yield from verbs(parser_of_verb, f"{name} {verb}", helps.get(verb, ""))


def named(action: argparse.Action) -> str:
    value = action.metavar or action.dest
    if not action.option_strings:
        shown = value if isinstance(value, str) else " ".join(value)
        return f"`{shown}`"
    takes = "" if action.nargs == 0 else f" {value if isinstance(action.metavar, str) else action.dest.upper()}"
    return ", ".join(f"`{option}{takes}`" for option in action.option_strings).replace("|", "\\|")


def told(action: argparse.Action) -> str:
    text = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
    if isinstance(action, argparse.BooleanOptionalAction):
        text = re.sub(r" \(default: \w+\)$", "", text)  # which some versions of Python add
    if action.choices is not None and action.metavar is None:
        text += f" ({', '.join(map(str, action.choices))})"
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def page() -> str:
    text = HEAD
    for name, said, actions in verbs(cli.get_parser()):
        text += f"\n## {name}\n\n"
        text += f"{said[:1].upper()}{said[1:]}.\n" if said else ""
        if actions:
            text += "\n| argument | |\n|---|---|\n" if said else "| argument | |\n|---|---|\n"
            text += "".join(f"| {named(action)} | {told(action)} |\n" for action in actions)
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
