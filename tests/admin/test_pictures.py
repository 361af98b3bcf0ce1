"""The pictures of one hung program in docs/observability.md; tests/procs/test_stuck_collectives.py asks the tools."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "docs/pictures/a_hang.py"


def test_every_tool_on_the_page_says_the_sentence() -> None:
    script = runpy.run_path(str(SCRIPT))
    shown = script["PAGE"].read_text().partition(script["BEGIN"])[2].partition(script["END"])[0]
    texts = dict(re.findall(r"^([^\n]+):\n\n```text\n(.*?)^```$", shown, re.MULTILINE | re.DOTALL))
    assert [tool for tool, text in texts.items() if not script["says"](text)] == []
    tools = [
        "The exception after a timeout",
        "`wait_graph()`",
        "`monarch doctor`",
        "`monarch status`",
        "`monarch stacks`",
    ]
    assert list(texts) == [*tools, "`monarch tui` (120 columns, 40 rows)", "The dashboard's first page"]
