"""The documentation's site as people see it: from files, in a folder of any name, in a real Chromium."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.site import extension, make_site

PAGES = ["index", "rdma", "settings", "dashboard", "source/examples/ddp.py", "reference/index", "tutorial/index"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_site(tmp_path_factory.mktemp("a folder, 100 %"))


def test_links_lead_somewhere(site: Path) -> None:
    assert extension("site_links").broken(site) == []
    front = re.sub("<[^>]*>", "", (site / "index.html").read_text())  # code is coloured word by word
    assert "from monarch.actor import Actor" in front
    assert "setup_torch_distributed" in (site / "source" / "examples" / "ddp.py.html").read_text()


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 720), (1920, 1080), (390, 844)], ids=["desk", "wide", "phone"])
def test_pages_from_files(window: Any, site: Path, size: tuple[int, int], colours: str) -> None:
    opened = window(colours, size=size)
    loaded: list[str] = []
    opened.page.on("request", lambda request: loaded.append(request.url))
    for name in PAGES:
        page = opened.open((site / f"{name}.html").as_uri())
        page.get_by_role("heading", level=1).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0], f"{name} is wider than the window"
        assert opened.is_light() == (colours == "light"), name
    assert opened.problems == []
    assert [url for url in loaded if not url.startswith(("file:", "data:"))] == []


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
