"""The documentation's site as people see it: from files, in a folder of any name, in a real Chromium."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.browser.checked import DESK, PHONE, faults, watch_clicks
from tests.support.site import extension

PAGES = ["index", "rdma", "settings", "dashboard", "source/examples/ddp.py", "reference/index", "tutorial/index"]
# Bytes with all that a page loads, before they are packed: most pages, and those with pictures, long lists or the search.
LIGHT = 350_000
HEAVY = {
    "search.html": 2_000_000,
    "dashboard.html": 900_000,
    "reference/actor.html": 700_000,
    "log.html": 600_000,
    "reference/job.html": 500_000,
}


def test_links_lead_somewhere(site: Path) -> None:
    assert extension("site_links").broken(site) == []
    front = re.sub("<[^>]*>", "", (site / "index.html").read_text())  # code is coloured word by word
    assert "from monarch.actor import Actor" in front
    assert "setup_torch_distributed" in (site / "source" / "examples" / "ddp.py.html").read_text()


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_pages_on_a_wide_screen(window: Any, site: Path, colours: str) -> None:
    """On others: the next one."""
    opened = window(colours, size=(1920, 1080))
    for name in PAGES:
        page = opened.open((site / f"{name}.html").as_uri())
        page.get_by_role("heading", level=1).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 1920, f"{name} is wider than the window"
        assert opened.is_light() == (colours == "light"), name
    assert opened.problems == []


@pytest.mark.parametrize("part", range(2), ids=["one", "other"])
def test_pages_of_the_site(window: Any, site: Path, part: int) -> None:
    opened = window()
    page = opened.page
    watch_clicks(page)
    loaded: list[str] = []
    page.on("request", lambda request: loaded.append(request.url))
    found = {}
    for file in sorted(site.rglob("*.html"))[part::2]:
        name = str(file.relative_to(site))
        page.goto(file.as_uri())
        others = [(DESK, "dark"), (PHONE, "light")] if name.removesuffix(".html") in PAGES else []
        found[name] = faults(page, *others, (PHONE, "dark"), (DESK, "light"))
        if (size := weight(file)) > HEAVY.get(name, LIGHT):
            found[name].append(f"{size:,} bytes with what it loads")
    assert len(found) > 80 and {name: its for name, its in found.items() if its} == {}
    assert opened.problems == []
    assert [url for url in loaded if not url.startswith(("file:", "data:"))] == []


def weight(file: Path) -> int:
    """The bytes of a page of the site and of what it loads; pages that it names as its neighbours are not loaded."""
    urls = [url for url in extension("site_links").Page(file.read_text()).loads if not url.startswith("data:")]
    loaded = {(file.parent / unquote(urlsplit(url).path)).resolve() for url in urls if ".html" not in url}
    return sum(each.stat().st_size for each in {file, *loaded})


def test_the_search_finds_pages(window: Any, site: Path) -> None:
    opened = window()
    page = opened.open((site / "index.html").as_uri())
    page.get_by_placeholder("Search").first.fill("training hangs after rank killed")
    page.keyboard.press("Enter")
    results = page.locator("#search-results a")
    results.first.wait_for()
    first = [link.get_attribute("href").partition("#")[0] for link in results.all()[:5]]
    assert {"./reliability.html", "./observability.html", "./how-to/restarts.html"} <= set(first)
    assert not any("log.html" in link.get_attribute("href") for link in results.all())

    def best(query: str) -> str:
        page.get_by_label("Words").fill(query)
        page.wait_for_url(lambda url: "q=" + query.split(maxsplit=1)[0] in url)
        return str(results.first.get_attribute("href"))

    assert best("exited with non-zero code 3") == "./reference/errors.html#failures"  # an error by its text
    assert best("setup_torch_distributed") == "./reference/actor.html#monarch.actor.setup_torch_distributed"
    page.get_by_label("Words").fill("zzzyx")
    page.get_by_text("Nothing has any of these words.").wait_for()
    assert results.count() == 0
    best("notebooks")
    results.first.click()
    page.wait_for_url("**/how-to/notebooks.html*")
    assert opened.problems == []


def test_links_lead_to_files_and_back(window: Any, site: Path) -> None:
    opened = window()
    page = opened.open((site / "types.html").as_uri())
    page.locator("a[href*='source/tests/']").first.click()
    page.locator("pre").first.wait_for()
    page.get_by_role("link", name="Tutorial").first.click()
    page.wait_for_url("**/tutorial/index.html")
    assert opened.problems == []
