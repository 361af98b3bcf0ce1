"""The panel of services, with a service of a program that runs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.service_program import NAME
from tests.support.tiers import full

pytestmark = [full, pytest.mark.procs]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [sys.executable, "-m", "tests.browser.service_program"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None and program.stdout is not None
        said = next((line for line in program.stdout if line.startswith("serves ")), "")
        yield said.removeprefix("serves ").strip()
        program.stdin.close()
        assert program.wait(60) == 0


@pytest.mark.parametrize("size", [(1280, 720), (390, 844)], ids=["desk", "phone"])
def test_a_service_is_shown_with_its_replicas_and_what_was_refused(
    window: Any, url: str, size: tuple[int, int]
) -> None:
    opened = window(size=size)
    page = opened.open(url)
    rows = page.get_by_label("Services", exact=True).get_by_label(NAME, exact=True).locator("tr")
    rows.nth(2).wait_for()
    assert re.fullmatch(re.escape(NAME) + r"not answered: \d+ ServiceOverloaded", rows.nth(0).inner_text())
    replicas = [rows.nth(at).locator("td").all_inner_texts() for at in (1, 2)]
    assert [replica[0] for replica in replicas] == ["0", "1"]
    for _, outstanding, answered, mean, p99, batch, version in replicas:
        assert outstanding.isdigit() and int(answered) > 0 and version == "0"
        assert all(re.fullmatch(r"[\d.]+ (ms|s)", time) for time in (mean, p99)) and 1 <= float(batch) <= 4
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert not page.locator("b").filter(has_text="of text").count()
    assert opened.problems == []
