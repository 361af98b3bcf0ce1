"""Every link of the site leads somewhere: python docs/site_links.py docs/_site

Links to files, and to places in them, are looked up. Of links to other sites only the form is checked; a page that loads
anything from another site, such as a script or a font, is an error: the site works without a network.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}
LOADED_BY_STYLE = re.compile(r"url\(\s*['\"]?(?P<url>[^'\")]+)|@import\s+['\"](?P<imported>[^'\"]+)")
MARKDOWN_LINK = re.compile(r"\]\((?!\w+:)([^)#]+)")


class Page(HTMLParser):
    """What a page links to and loads, and the places that a link can name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.places.update(values[name] for name in ("id", "name") if values.get(name))
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        elif tag in LOADED and values.get(LOADED[tag]):
            self.loads.append(values[LOADED[tag]])


def linked(text: Path) -> list[str]:
    """The files that a Markdown text of the site's root links to; none when it is not there."""
    return MARKDOWN_LINK.findall(text.read_text()) if text.exists() else []


def broken(site: Path) -> list[str]:
    """A line for each link that leads nowhere."""
    pages = {file: Page(file.read_text()) for file in sorted(site.rglob("*.html"))}
    found = []
    for file, page in pages.items():
        where = file.relative_to(site)
        for url in page.loads:
            if urlsplit(url).scheme not in {"", "data"} or url.startswith("//"):
                found.append(f"{where} loads {url} from another site")
        for url in [*page.loads, *page.links]:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            if parts.path.startswith("/"):
                found.append(f"{where}: {url} works only at the root of a server")
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                found.append(f"{where}: there is no {url}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places:
                found.append(f"{where}: no such place: {url}")
    for text in (site / "llms.txt", site / "SKILL.md"):
        found += [f"{text.name}: there is no {path}" for path in linked(text) if not (site / path).exists()]
    for style in sorted(site.rglob("*.css")):
        for match in LOADED_BY_STYLE.finditer(style.read_text()):
            if re.match(r"(https?:)?//", match["url"] or match["imported"]):
                found.append(f"{style.relative_to(site)} loads {match['url'] or match['imported']}")
    return found


if __name__ == "__main__":
    lines = broken(Path(sys.argv[1]).resolve())
    print("\n".join(lines), file=sys.stderr, end="\n" if lines else "")
    sys.exit(bool(lines))
