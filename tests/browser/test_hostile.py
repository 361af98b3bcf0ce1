"""Tests of what others have named, and what other pages send: neither does anything in the browser of who looks."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from examples.simulated_dashboard import Simulation
from monarch._http.server import HttpServer, Site
from monarch.dashboard.pages.api import PageData
from monarch.dashboard.pages.icicle import RankStack
from monarch.dashboard.pages.live_data import LiveStacks
from monarch.dashboard.routes.page_routes import routes_of
from monarch.telemetry.store import Store
from tests.support.web import served

TURNED = "\u202e"  # the text behind it is read from right to left
MARKUP = "\"'><script>window.taken=1</script><img src=x onerror=window.taken=2></textarea>"
HOSTILE = f"{MARKUP}{TURNED}javascript:window.taken=3//"
NAMES = ("trainers", "Trainer", "node1", "node6", "OutOfMemoryError", "train.py", "simulated", "loss.backward", "step")

# What a page may have of what it was given: text. Each of these is a way in which it would be more.
FOUND = """() => {
    const all = selector => [...document.querySelectorAll(selector)], own = `${location.origin}/`;
    return {
        taken: window.taken ?? null,
        scripts: all("script").filter(each => !each.src.startsWith(`${own}static/`)).length,
        images: all("img").length,
        handlers: all("*").filter(each => [...each.attributes].some(one => one.name.startsWith("on"))).length,
        links: all("a").filter(each => !each.href.startsWith(own)).length,
        turned: [document.body.innerText, document.title, ...all("*").flatMap(each => [each.title, each.ariaLabel])]
            .some(text => String(text).includes("\\u202e")),
    };
}"""
NOTHING = {"taken": None, "scripts": 0, "images": 0, "handlers": 0, "links": 0, "turned": False}


def hostile(value: Any) -> Any:
    """Returns what was recorded, with names that somebody has chosen to do harm. What is JSON in a text stays that."""
    match value:
        case RankStack():
            frames = [(hostile(name), hostile(file), line) for name, file, line in value.frames]
            return RankStack(hostile(value.where), hostile(value.group), frames, value.idle, hostile(value.thread))
        case str() if not value.startswith(("{", "[")):
            for name in NAMES:
                value = value.replace(name, name + HOSTILE)
            return value
        case list() | tuple():
            return type(value)(hostile(each) for each in value)
        case dict():
            return {key: hostile(each) for key, each in value.items()}
    return value


class HostileStore(Store):
    """A store of what is hostile."""

    def insert(self, table: str, rows: Any) -> None:
        super().insert(table, hostile(list(rows)))


class HostileSimulation(Simulation):
    """A job with such names."""

    def about(self) -> dict[str, Any]:
        return {**hostile(super().about()), "pid": 1}

    def payloads(self) -> list[dict[str, Any]]:
        return [hostile(each) for each in super().payloads()]

    def stacks(self) -> LiveStacks:
        return LiveStacks([hostile(each) for each in super().stacks().stacks], {"node6" + HOSTILE: HOSTILE})

    def stacks_of(self, reference: str) -> LiveStacks:
        return LiveStacks(self.stacks().stacks[:3], {reference: HOSTILE})

    def profile(self, seconds: float, path: str) -> None:
        raise RuntimeError(HOSTILE)


@pytest.fixture(scope="module")
def attacked() -> Iterator[tuple[str, Simulation]]:
    """The dashboard of such a job, and the job."""
    store, server = HostileStore(), HttpServer()
    simulation = HostileSimulation(store, ranks=16, failure_at=10.0, past=60.0)
    yield server.serve(Site(routes_of(PageData(store, simulation)))).url, simulation
    server.close()
    store.close()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/", "Slowest endpoints"),
        ("/topology", "trainers"),
        ("/topology?view=graph", ""),
        ("/actors", "trainers"),
        ("/actors?id=", "Messages"),
        ("/metrics", "tokens/s"),
        ("/logs", "begins"),
        ("/doctor", "What to do"),
        ("/hardware", "GPU load"),
        ("/stacks", "trainers"),
        ("/traces", "failed"),
    ],
)
def test_names_are_text(window: Any, attacked: tuple[str, Simulation], path: str, text: str) -> None:
    url, simulation = attacked
    opened = window()
    if path.endswith("id="):
        path += str(simulation._job.actors["trainers"][3])
    page = opened.open(url + path)
    if path == "/traces":
        page.get_by_role("button", name="Record").click()
        text = "window.taken"
    if text:
        page.get_by_text(text).first.wait_for()
    page.get_by_text("window.taken").first.wait_for(state="attached")
    if path.startswith("/actors?id="):
        page.get_by_role("button", name="Capture now").click()
        page.locator(".missing:visible").wait_for()
    assert page.evaluate(FOUND) == NOTHING
    assert opened.problems == []


def test_results_of_sql_are_text(window: Any, attacked: tuple[str, Simulation]) -> None:
    opened = window()
    page = opened.open(f"{attacked[0]}/sql")
    editor = page.get_by_label("SQL", exact=True)
    quoted = HOSTILE.replace("'", "''")
    editor.fill(f"SELECT '{quoted}' AS \"{HOSTILE.replace(chr(34), chr(34) * 2)}\", display_name FROM actors")
    editor.press("Control+Enter")
    page.locator(".result td").first.wait_for()
    assert "<script>window.taken=1</script>" in page.locator(".result td").first.text_content()
    assert "\\u202e" in page.locator(".result th").first.text_content()
    assert page.evaluate(FOUND) == NOTHING
    editor.fill(f"SELECT {HOSTILE}")
    editor.press("Control+Enter")
    page.get_by_role("alert").wait_for()
    assert page.evaluate(FOUND) == NOTHING


class AnotherSite(BaseHTTPRequestHandler):
    """An empty page of another port of this machine."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>another</title><iframe name=answer></iframe>")


FETCHED = """([url, kind]) => fetch(url, {method: "POST", mode: kind === "application/json" ? "cors" : "no-cors",
    body: '{"from": "another site"}', headers: {"content-type": kind}}).then(answer => answer.type, () => "refused")"""
SENT = """url => {
    const form = document.createElement("form"), field = document.createElement("input");
    Object.assign(form, {method: "POST", action: url, target: "answer", enctype: "text/plain"});
    Object.assign(field, {name: '{"from": "a form", "x": "', value: '"}'});
    form.append(field);
    document.body.append(form);
    form.submit();
}"""


def test_a_page_of_another_port_posts_nothing(window: Any) -> None:
    from starlette.responses import Response
    from starlette.routing import Route

    written: list[bytes] = []

    async def write(request: Any) -> Any:
        written.append(await request.body())
        return Response("written", media_type="text/plain")

    async def page_here(request: Any) -> Any:
        return Response("<!doctype html><title>here</title>", media_type="text/html")

    server = HttpServer()
    try:
        url = server.serve(Site([Route("/write", write, methods=["POST"]), Route("/", page_here)])).url
        with served(AnotherSite) as other:
            page = window().open(f"http://{other.replace('127.0.0.1', 'localhost')}/")
            for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json"):
                assert page.evaluate(FETCHED, [f"{url}/write", kind]) in ("opaque", "refused")
            with page.expect_response(lambda answer: answer.url.endswith("/write")) as answered:
                page.evaluate(SENT, f"{url}/write")
            assert answered.value.status == 403
            assert page.evaluate("url => navigator.sendBeacon(url, 'x') || true", f"{url}/write")
            assert page.evaluate("url => fetch(url).then(() => 'read', () => 'refused')", url) == "refused"
        page = window().open(url)
        assert page.evaluate(FETCHED, [f"{url}/write", "application/json"]) == "basic"
        assert written == [b'{"from": "another site"}']
    finally:
        server.close()
