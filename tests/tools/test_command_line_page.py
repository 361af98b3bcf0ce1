"""docs/reference/command-line.md has every verb and flag, and docs/cli.md every verb."""

from __future__ import annotations

import re

from monarch.tools import cli
from tests.support import command_line_page


def test_the_page_is_what_the_parser_says() -> None:
    assert command_line_page.PAGE.read_text() == command_line_page.page(), "python -m tests.support.command_line_page"


def test_the_guide_shows_every_verb() -> None:
    guide = (command_line_page.PAGE.parents[1] / "cli.md").read_text()
    verbs = [name.split()[1] for name, _, _ in command_line_page.verbs(cli.get_parser()) if len(name.split()) == 2]
    assert len(verbs) > 15
    assert [verb for verb in verbs if not re.search(rf"`{verb}`|monarch {verb}\b", guide)] == []
