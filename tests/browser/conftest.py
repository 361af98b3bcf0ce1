"""A real Chromium, and a dashboard of a simulated job for it to look at."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.simulated_dashboard import Simulation
from monarch._http.server import HttpServer, Site
from monarch.dashboard.pages.api import PageData
from monarch.dashboard.routes.page_routes import routes_of
from monarch.telemetry.store import Store
from tests.support.site import make_site

OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LUMINANCE = (
    "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0)"
)
PATIENCE = 60_000  # ms for anything to appear


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = None if shutil.which("chromium") else "no chromium on PATH: `make browser` installs it"
    for item in items:
        if "tests/browser" in str(item.path):
            item.add_marker(pytest.mark.browser)
            if missing:
                item.add_marker(pytest.mark.skip(reason=missing))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation's site, in a folder whose name has to be quoted."""
    return make_site(tmp_path_factory.mktemp("a folder, 100 %"))


class Served:
    """A simulated job and its pages. `stop` ends the server, as if the program had been killed."""

    def __init__(self, ranks: int, failure_at: float | None) -> None:
        self.store = Store()
        self.simulation = Simulation(self.store, ranks=ranks, failure_at=failure_at, past=90.0)
        self.server = HttpServer()
        self.url = self.server.serve(Site(routes_of(PageData(self.store, self.simulation)))).url

    def stop(self) -> None:
        self.server.close()

    def close(self) -> None:
        self.server.close()
        self.store.close()


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """64 ranks, of which 42 has failed half a minute ago and the others wait for it."""
    made = Served(64, 45.0)
    yield made
    made.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Makes others."""
    made: list[Served] = []

    def start(ranks: int, failure_at: float | None = None) -> Served:
        made.append(Served(ranks, failure_at))
        return made[-1]

    yield start
    for each in made:
        each.close()


class Window:
    """A page, and what went wrong in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.problems.append(str(error)))

    def open(self, url: str) -> Any:
        self.page.goto(url)
        return self.page

    def is_light(self) -> bool:
        """Returns whether the page is light, and not dark."""
        return bool(self.page.evaluate(LUMINANCE) > 384)


@pytest.fixture
def window(chromium: Any) -> Iterator[Callable[..., Window]]:
    """Opens windows: `colours` light or dark, `size` in pixels."""
    contexts = []

    def start(colours: str = "light", size: tuple[int, int] = (1280, 720), **more: Any) -> Window:
        width, height = size
        context = chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=colours, reduced_motion="reduce", **more
        )
        contexts.append(context)
        return Window(context.new_page())

    yield start
    for context in contexts:
        context.close()
