"""The dashboard as people see it, in a real Chromium."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from monarch._http.server import HttpServer, Site
from monarch.dashboard.pages.api import PageData
from monarch.dashboard.routes.page_routes import routes_of
from monarch.telemetry.curves import MetricCurves
from monarch.telemetry.runs import RunWriter
from tests.browser.checked import DESK, PHONE, faults, watch_clicks

PAGES = {
    "/": "Slowest endpoints",
    "/metrics": "tokens/s",
    "/logs": "no room for the gradients",
    "/logs?source=printed": "step 42: loss",
    "/doctor": "What to do",
    "/topology": "trainers",
    "/topology?view=graph": "node1:26600",
    "/actors": "trainers",
    "/sql": "actor_status_events",
    "/hardware": "GPU load",
    "/stacks": "Trainer.step",
    "/traces": "None yet",
}
DASHBOARD, ANSWERS = 180_000, 450_000  # bytes of a page's files, and of what it asks at first
# Bytes of the page and what it loads, as they are before they are packed; and of the answers that it asked for.
LOADED = """() => {
  const all = ["navigation", "resource"].flatMap(kind => performance.getEntriesByType(kind));
  const size = entries => entries.reduce((sum, each) => sum + each.decodedBodySize, 0);
  const asked = each => each.name.includes("/api/");
  return [size(all.filter(each => !asked(each))), size(all.filter(asked))];
}"""


@pytest.mark.parametrize("size", [(1280, 720), (390, 844)], ids=["desk", "phone"])
def test_every_page_opens(window: Any, served: Any, size: tuple[int, int]) -> None:
    opened = window(size=size)
    failed = str(served.simulation._job.actors["trainers"][42])
    for path, text in {
        **PAGES,
        f"/actors?id={failed}": "CUDA out of memory",
        f"/failure?id={failed}": "No other actor failed",
    }.items():
        page = opened.open(served.url + path)
        page.get_by_text(text).first.wait_for()
        if path.startswith("/actors?id="):
            page.locator("td.clip").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0], f"{path} is wider than the window"
        assert not page.locator(".missing:visible").count(), path
    assert opened.problems == []


def test_everyone_can_read_and_use_them(window: Any, served: Any) -> None:
    failed = str(served.simulation._job.actors["trainers"][42])
    opened = window()
    page = opened.page
    watch_clicks(page)
    found = {}
    pages = {f"/actors?id={failed}": "CUDA out of memory", f"/failure?id={failed}": "No other actor failed", **PAGES}
    for path, text in pages.items():
        page.goto(served.url + path)
        page.get_by_text(text).first.wait_for()
        found[path] = faults(page, (DESK, "light"), (DESK, "dark"), (PHONE, "dark"), (PHONE, "light"))
        loaded, answers = page.evaluate(LOADED)
        if loaded > DASHBOARD or answers > ANSWERS:
            found[path].append(f"{loaded:,} bytes of files and {answers:,} of answers")
    assert {path: its for path, its in found.items() if its} == {} and opened.problems == []


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_colours_follow_the_system_and_the_switch(window: Any, served: Any, colours: str) -> None:
    opened = window(colours)
    page = opened.open(served.url)
    page.locator(".figure").first.wait_for()
    assert opened.is_light() == (colours == "light")
    other = "dark" if colours == "light" else "light"
    for _ in range(3):
        page.locator("#theme").click()
        if page.locator("#theme").get_attribute("title") == f"Colours: {other}":
            break
    assert opened.is_light() == (other == "light")
    page.reload()
    assert opened.is_light() == (other == "light")  # remembered


def test_it_can_be_walked_by_keyboard(window: Any, served: Any) -> None:
    opened = window()
    page = opened.open(served.url)
    page.locator("nav a").first.wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the page"
    seen = []
    for _ in range(20):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.getAttribute('href') ?? document.activeElement.id"))
        if seen[-1] == "/topology":
            break
    assert "/topology" in seen
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"  # the focus is seen
    page.keyboard.press("Enter")
    grid = page.get_by_role("application", name=re.compile("^trainers"))
    grid.focus()
    says = grid.locator("xpath=..").locator("[aria-live]")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.wait_for_function("element => element.textContent.includes('rank 9')", arg=says.element_handle())
    page.keyboard.press("f")
    page.wait_for_function("element => element.textContent.includes('rank 42')", arg=says.element_handle())
    assert "failed" in says.text_content()
    page.keyboard.press("Enter")
    drawer = page.get_by_role("dialog")
    drawer.get_by_text("torch.OutOfMemoryError").wait_for()
    assert drawer.get_by_role("heading", name="trainers 42").count() == 1
    page.keyboard.press("Escape")
    drawer.wait_for(state="hidden")
    assert grid.evaluate("element => element === document.activeElement")
    assert opened.problems == []


def test_a_failed_rank_is_found_from_the_overview(window: Any, served: Any) -> None:
    page = window().open(served.url)
    page.locator("#health").get_by_text("1 failed").wait_for()
    page.get_by_role("link", name="look").first.click()
    page.get_by_role("heading", name="Trainer trainers{'gpus': 42/64} failed").wait_for()
    page.get_by_label("Report").get_by_text("loss.backward()").wait_for()
    page.get_by_role("region", name="Last lines of its log").get_by_text("no room for the gradients").wait_for()
    page.get_by_role("region", name="Last lines that its process printed").get_by_text("step 42: loss").wait_for()
    assert page.locator(".owners li").all_text_contents() == ["root", "└ Trainer trainers{'gpus': 42/64}"]
    assert "/failure?id=" in page.url
    page.get_by_role("link", name="its messages and stacks").click()
    page.get_by_role("heading", name="Trainer trainers{'gpus': 42/64}").wait_for()
    page.get_by_text("Traceback (most recent call last)").wait_for()
    page.locator(".events li").last.get_by_text("Failed").wait_for()
    page.get_by_role("button", name=re.compile("history of message")).first.click()
    page.locator("td.history").get_by_text("queued").wait_for()
    page.get_by_role("button", name="Capture now").click()
    page.locator(".missing:visible").wait_for()  # this process has ended
    page.go_back()
    page.get_by_label("Report").wait_for()
    page.go_back()
    page.get_by_text("Messages over time").wait_for()


def test_the_doctors_sentence_is_on_top_with_its_evidence(window: Any, served: Any) -> None:
    opened = window()
    page = opened.open(served.url)
    doctor = page.get_by_role("status", name="Doctor")
    doctor.get_by_text("trainers 42 has failed: torch.OutOfMemoryError").wait_for()
    doctor.get_by_role("link", name="evidence").click()
    page.get_by_label("Evidence of finding 2").get_by_text("in all_reduce").wait_for()
    page.get_by_role("heading", name="2. ranks 0-41, 43-63 wait in all_reduce #43").wait_for()
    page.locator("tbody").get_by_text("lasts").first.wait_for()
    assert page.url == f"{served.url}/doctor" and opened.problems == []


def test_healthy_is_what_the_doctor_says(window: Any, serve: Any) -> None:
    page = window().open(serve(8).url)
    page.get_by_text("Nothing is wrong that can be seen from outside: 8 processes looked at.").wait_for()
    page.locator("#health").get_by_text("healthy").wait_for()


def test_logs_are_filtered_and_lead_to_the_failure(window: Any, served: Any) -> None:
    opened = window()
    page = opened.open(f"{served.url}/logs")
    lines = page.locator(".logline")
    lines.get_by_text("step 42 begins").wait_for()
    page.get_by_text("lines, following").wait_for()
    page.get_by_label("Level").select_option("WARNING")
    page.wait_for_function(
        "() => ![...document.querySelectorAll('.logline')].some(line => line.textContent.includes('INFO'))"
    )
    page.get_by_label("Ranks").fill("17")
    page.wait_for_function("() => document.querySelectorAll('.logline').length === 9")
    page.get_by_label("Text").fill("batch 40")
    page.wait_for_function("() => document.querySelectorAll('.logline').length === 1")
    assert page.url == f"{served.url}/logs?text=batch+40&rank=17&level=WARNING"
    page.reload()
    lines.get_by_text("reading batch 40 took 480 ms").wait_for()
    page.get_by_label("Ranks").fill("17-")
    page.get_by_text("ranks are such as 3 or 0,2-4").wait_for()
    page.get_by_role("link", name="Go to the failure").click()
    page.locator(".logline[data-at]").get_by_text("torch.OutOfMemoryError").wait_for()
    assert "/logs?at=" in page.url
    page.get_by_role("button", name="Printed").click()
    lines.get_by_text("stdout").first.wait_for()
    assert [problem for problem in opened.problems if "400" not in problem] == []


def test_actors_opens_on_the_one_to_look_at(window: Any, served: Any, serve: Any) -> None:
    page = window().open(f"{served.url}/actors")
    page.get_by_role("heading", name="Trainer trainers{'gpus': 42/64}").wait_for()
    assert "?id=" in page.url
    page.get_by_text("processing").first.wait_for()  # as the grid has them


def test_curves_and_runs_beside_them(window: Any, served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        curves = MetricCurves()
        for step in range(200):
            curves.add("trainers", "loss", step, 1 / (step + 1), 0, 0.0)
        RunWriter(str(tmp_path), name, curves).close()
    monkeypatch.setattr(served.store, "runs", str(tmp_path))
    opened = window()
    page = opened.open(f"{served.url}/metrics")
    page.get_by_text("Rank 17 differs from all others of trainers").wait_for()
    assert page.locator("svg.curve").count() == 3
    loss = page.get_by_role("region", name="loss")
    loss.get_by_text("NaN or infinite first at step 9, rank 5.").wait_for()
    page.get_by_label("Filter by name").fill("loss")
    page.wait_for_function("() => document.querySelectorAll('svg.curve').length === 1")
    page.get_by_label("first").check()
    loss.locator("path.run-0").wait_for()
    page.get_by_label("second").check()
    loss.locator("path.run-1").wait_for()
    page.get_by_role("button", name="Log").click()
    page.wait_for_url(f"{served.url}/metrics?match=loss&runs=first%2Csecond&scale=log")
    page.reload()  # the address has all of it
    loss.locator("path.run-1").wait_for()
    assert page.get_by_label("Filter by name").input_value() == "loss" and page.get_by_label("first").is_checked()
    loss.locator("svg").hover()
    loss.locator(".reading").get_by_text("second 0.").wait_for()
    page.get_by_label("first").uncheck()
    page.wait_for_url(f"{served.url}/metrics?match=loss&runs=second&scale=log")
    assert opened.problems == []


def test_the_explorer_filters(window: Any, served: Any) -> None:
    page = window().open(f"{served.url}/actors")
    tree = page.get_by_role("tree", name="Actors by mesh")
    tree.get_by_role("treeitem").first.wait_for()
    page.get_by_label("Filter").fill("failed")
    page.get_by_text("1 of 138").wait_for()
    page.get_by_label("Filter").press("Tab")
    tree.get_by_role("treeitem").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Trainer trainers{'gpus': 42/64}").wait_for()


def test_sql(window: Any, served: Any) -> None:
    opened = window()
    page = opened.open(f"{served.url}/sql")
    editor = page.get_by_label("SQL", exact=True)
    editor.fill("SELECT id, rank FROM actors ORDER BY rank DESC LIMIT 2")
    editor.press("Control+Enter")
    page.get_by_role("status").get_by_text("2 rows").wait_for()
    ids = page.locator(".result tbody tr td:first-child").all_text_contents()
    assert all(name.isdigit() and len(name) > 15 for name in ids)
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    text = Path(download.value.path()).read_text()
    assert text.splitlines()[0] == "id,rank" and ids[0] in text
    editor.fill("DELETE FROM actors")
    page.get_by_role("button", name="Run").click()
    page.get_by_role("alert").get_by_text("telemetry is read, not written").wait_for()
    editor.fill("SELECT count(*) FROM range(1000000000) a, range(100000) b")
    editor.press("Control+Enter")
    page.get_by_role("status").get_by_text("running,").wait_for()
    editor.press("Escape")
    page.get_by_role("status").get_by_text("cancelled").wait_for()
    refused = [problem for problem in opened.problems if "400" not in problem]
    assert refused == []


def test_the_straggler_is_marked(window: Any, served: Any) -> None:
    page = window().open(f"{served.url}/stacks")
    page.get_by_text("Not where the others are").wait_for()
    page.get_by_text("trainers 17").first.wait_for()
    bars = page.locator(".icicle button")
    page.locator(".icicle button.straggler").first.click()
    page.wait_for_function("() => document.querySelectorAll('.icicle button').length === 2")
    bars.first.focus()
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.querySelectorAll('.icicle button').length > 2")


# Steps of the focus, all in one turn so that no poll is between: cells that were drawn, and ms up to the next frame.
FRAMES = """async () => {
  const box = [...document.querySelectorAll('.cells')].find(each => each === document.activeElement), found = [];
  for (let step = 0; step < 15; step += 1) {
    const began = performance.now();
    box.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));
    const cells = Number(box.querySelector('canvas').dataset.cells);
    await new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)));
    found.push([cells, performance.now() - began]);
  }
  return found;
}"""


def test_thousands_of_ranks_are_drawn_at_once(window: Any, serve: Any, capsys: Any) -> None:
    served = serve(4096, 60.0)
    opened = window()
    page = opened.open(f"{served.url}/topology")
    page.locator("canvas[data-draw-ms]").first.wait_for()
    page.get_by_role("application", name=re.compile("^trainers")).focus()
    page.keyboard.press("f")
    page.get_by_text("rank 42  ·").wait_for()
    times = page.evaluate("[...document.querySelectorAll('canvas')].map(canvas => Number(canvas.dataset.drawMs))")
    frames = page.evaluate(FRAMES)
    assert all(cells <= 2 for cells, _ in frames), "a step of the focus draws no other cells"
    with capsys.disabled():
        typical = sorted(took for _, took in frames)[len(frames) // 2]
        print(
            f"\n4,096 ranks: canvases drawn in {max(times):.1f} ms at most; a step of the focus takes {typical:.0f} ms"
        )
    assert opened.problems == []


def test_hosts_are_sorted_by_what_they_use_and_the_address_says_so(window: Any, served: Any, serve: Any) -> None:
    opened = window()
    page = opened.open(f"{served.url}/hardware")

    def hosts() -> Any:
        return page.evaluate("[...document.querySelectorAll('tr[data-host]')].map(row => row.dataset.host)")

    def numbers(column: int) -> Any:
        """In one turn of the page's: nothing is drawn anew between two rows."""
        cells = f"[...document.querySelectorAll('tr[data-host] td:nth-child({column})')]"
        return page.evaluate(f"{cells}.map(cell => parseFloat(cell.textContent))")

    page.locator("th[aria-sort=descending] [data-sort=gpu]").wait_for()  # there are GPUs, so they count first
    found = numbers(5)
    assert len(found) == 8 and found == sorted(found, reverse=True)
    page.locator("[data-sort=memory]").click()
    page.wait_for_url("**/hardware?sort=memory")
    found = numbers(4)
    assert len(set(found)) > 1 and found == sorted(found, reverse=True)
    page.locator("[data-sort=memory]").press("Enter")
    page.wait_for_url("**/hardware?sort=memory&order=up")
    found = numbers(4)
    assert len(set(found)) > 1 and found == sorted(found)
    assert page.evaluate("document.activeElement.dataset.sort") == "memory"

    now = serve(64)  # the other has measured nothing since it was made, which may be more than two minutes ago
    page = opened.open(f"{now.url}/hardware?sort=host&order=up&host=node2&seconds=120")  # one that was sent
    page.locator("th[aria-sort=descending] [data-sort=host]").wait_for()
    assert hosts() == ["node2"]
    assert page.get_by_role("button", name="2 min").get_attribute("aria-pressed") == "true"
    assert opened.problems == []


def test_a_server_that_is_killed_is_said(window: Any, serve: Any) -> None:
    served = serve(8)
    page = window().open(served.url)
    page.get_by_text("live ·").wait_for()
    page.get_by_text("Slowest endpoints").wait_for()
    served.stop()
    page.get_by_text("reconnecting").wait_for()
    page.get_by_role("alert").get_by_text("What is shown is what was last known").wait_for()
    assert page.locator(".figure").count() == 6  # what was known stays


def test_a_hidden_page_asks_nothing(window: Any, served: Any) -> None:
    opened = window()
    page = opened.open(served.url)
    page.get_by_text("live ·").wait_for()
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true}); window.away = true"
    )
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_text("paused").wait_for()
    asked.clear()
    page.wait_for_function("() => (window.turns = (window.turns ?? 0) + 1) > 240")  # 4 s of frames
    assert asked == []
    page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    page.get_by_text("live ·").wait_for()
    page.wait_for_event("request", predicate=lambda request: "/api/summary" in request.url)


def test_the_token_lets_in_and_leaves_the_address(window: Any, served: Any) -> None:
    server = HttpServer()
    try:
        site = Site(routes_of(PageData(served.store, served.simulation)), "0.0.0.0", 0, "a-token")
        port = urlsplit(server.serve(site).url).port
        url = f"http://127.0.0.1:{port}/"
        page = window().open(url)
        page.get_by_text("open the URL that was printed").wait_for()
        page = window().open(f"{url}?token=wrong")
        page.get_by_text("open the URL that was printed").wait_for()
        page = window().open(f"{url}?token=a-token")
        page.get_by_text("live ·").wait_for()
        assert page.url == url
        # A link in a page of another site; the cookie is not sent with what that site starts.
        page = window().open(f"{served.url}/traces")
        page.evaluate(
            "url => { document.body.innerHTML = ''; const link = document.createElement('a'); "
            "link.href = url; link.textContent = 'there'; document.body.append(link); }",
            f"{url}?token=a-token",
        )
        page.get_by_text("there").click()
        page.get_by_text("live ·").wait_for()
        assert page.url == url
    finally:
        server.close()
