"""A crawler: several actors take pages from one queue of work, and what they find comes back through a port.

    python examples/crawler.py --crawlers 3

The site is generated into a temporary folder and served on 127.0.0.1, so nothing outside this host is asked.
Work is handed out by demand. A crawler opens a channel of its own and sends its port along with every result:
"here is what I found, and here is where the next page goes". Slow pages hold up nobody but their crawler.
"""

import argparse
import asyncio
import tempfile
import threading
import urllib.error
import urllib.request
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from monarch.actor import Actor, Channel, Port, current_rank, endpoint, this_host


@dataclass
class Page:
    url: str
    title: str
    links: list[str]


@dataclass
class Report:
    crawler: int
    inbox: Port[str | None]  # where this crawler takes its next URL from; None tells it to stop
    page: Page | None  # what it found; None: it has just started


class PageParser(HTMLParser):
    """Collects the title and the targets of the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.title, self.in_title = "", False
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.in_title = tag == "title"
        if tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]

    def handle_data(self, data: str) -> None:
        if self.in_title:
            self.title += data
        self.in_title = False


class Crawler(Actor):
    @endpoint
    def work(self, reports: Port[Report]) -> int:
        """Take URLs until None comes; returns how many pages it visited."""
        rank, visited = current_rank().rank, 0
        inbox, urls = Channel[str | None].open()
        reports.send(Report(rank, inbox, None))
        while (url := urls.recv().get()) is not None:
            reports.send(Report(rank, inbox, self.visit(url)))
            visited += 1
        return visited

    def visit(self, url: str) -> Page:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever the environment says
        try:
            with direct.open(url, timeout=10) as response:
                parser = PageParser()
                parser.feed(response.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Page(url, f"HTTP {error.code}", [])
        return Page(url, parser.title, [urljoin(url, link) for link in parser.links])


SITE = {  # page: (title, links)
    "index.html": ("Home", ["docs/index.html", "blog/index.html", "about.html"]),
    "about.html": ("About us", ["index.html", "https://example.org/elsewhere"]),
    "docs/index.html": ("Documentation", ["start.html", "actors.html", "meshes.html", "../index.html"]),
    "docs/start.html": ("Getting started", ["actors.html"]),
    "docs/actors.html": ("Actors", ["meshes.html", "start.html", "removed.html"]),
    "docs/meshes.html": ("Meshes", ["actors.html", "index.html"]),
    "blog/index.html": ("Blog", ["first.html", "second.html", "../docs/start.html"]),
    "blog/first.html": ("First post", ["second.html"]),
    "blog/second.html": ("Second post", ["first.html", "../about.html"]),
}


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served_site() -> Iterator[str]:
    """Write SITE into a temporary folder and serve it; yields the URL of its root."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (title, links) in SITE.items():
            file = Path(folder, name)
            file.parent.mkdir(exist_ok=True)
            anchors = "".join(f'<a href="{link}">{link}</a>' for link in links)
            file.write_text(f"<html><head><title>{title}</title></head><body>{anchors}</body></html>")
        with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder)) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}/"
            finally:
                server.shutdown()
                thread.join()


async def crawl(crawlers: Crawler, root: str) -> tuple[dict[str, Page], Counter[int]]:
    """All pages that can be reached below `root`, by URL, and how many each crawler visited."""
    port, reports = Channel[Report].open()
    done = crawlers.work.call(port)
    start = urljoin(root, "index.html")
    queue, seen = deque([start]), {start}
    pages: dict[str, Page] = {}
    idle: list[Report] = []
    while queue or len(pages) < len(seen):
        report = await reports.recv()
        if page := report.page:
            pages[page.url] = page
            new = [link for link in dict.fromkeys(page.links) if link.startswith(root) and link not in seen]
            seen.update(new)
            queue.extend(new)
        idle.append(report)
        while queue and idle:
            idle.pop(0).inbox.send(queue.popleft())
    while len(idle) < len(crawlers):  # those that had not even started
        idle.append(await reports.recv())
    for report in idle:
        report.inbox.send(None)
    return pages, Counter({point.rank: count for point, count in await done})


async def main() -> None:
    parser = argparse.ArgumentParser(description="Crawl a small local site with several actors.")
    parser.add_argument("--crawlers", type=int, default=3, help="how many actors (default %(default)s)")
    count = parser.parse_args().crawlers

    with served_site() as root:
        procs = this_host().spawn_procs({"crawlers": count})
        pages, visits = await crawl(procs.spawn("crawler", Crawler), root)
        await procs.stop()

    for url, page in sorted(pages.items()):
        targets = ", ".join(urlsplit(link).path for link in page.links if link.startswith(root))
        print(f"{urlsplit(url).path:<20} {page.title:<16} -> {targets or '(no links)'}")
    print(f"{len(pages)} pages by {count} crawlers, visits by crawler: {[visits[i] for i in range(count)]}")


if __name__ == "__main__":
    asyncio.run(main())
