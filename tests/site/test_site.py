"""Links of the documentation's site: what is said of broken ones, and where those out of a page lead.

The site itself is made and looked at in tests/browser.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.site import DOCS, ROOT, extension

PAGE = '<html><body id="top"><h1 id="here">x</h1>{}</body></html>'


@pytest.mark.parametrize(
    ("inside", "wanted"),
    [
        ('<a href="b.html">b</a><a href="b.html#there">b</a><a href="#here">a</a>', []),
        ('<a href="https://example.org/none">elsewhere</a><a href="mailto:a@example.org">a</a>', []),
        ('<a href="sub">a folder with an index</a>', []),
        ('<a href="c.html">c</a>', ["a.html: there is no c.html"]),
        ('<a href="b.html#nowhere">b</a>', ["a.html: no such place: b.html#nowhere"]),
        ('<a href="/b.html">b</a>', ["a.html: /b.html works only at the root of a server"]),
        ('<img src="gone.svg">', ["a.html: there is no gone.svg"]),
        (
            '<script src="https://example.org/x.js"></script>',
            ["a.html loads https://example.org/x.js from another site"],
        ),
        ('<script src="//example.org/x.js"></script>', ["a.html loads //example.org/x.js from another site"]),
    ],
)
def test_broken_links(tmp_path: Path, inside: str, wanted: list[str]) -> None:
    (tmp_path / "a.html").write_text(PAGE.format(inside))
    (tmp_path / "b.html").write_text(PAGE.format('<p id="there">'))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "index.html").write_text(PAGE.format(""))
    assert extension("site_links").broken(tmp_path) == wanted


def test_links_of_what_agents_read(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(PAGE.format(""))
    (tmp_path / "llms.txt").write_text("[a](a.html), [elsewhere](https://example.org), [b](b.html#x)")
    assert extension("site_links").broken(tmp_path) == ["llms.txt: there is no b.html"]


@pytest.mark.parametrize(
    ("style", "wanted"),
    [
        ("a { background: url(x.png) } b { background: url(data:image/png;base64,xx) }", []),
        ("@import 'https://example.org/font.css';", ["x.css loads https://example.org/font.css"]),
        ("a { src: url('//example.org/f.woff') }", ["x.css loads //example.org/f.woff"]),
    ],
)
def test_styles_of_other_sites(tmp_path: Path, style: str, wanted: list[str]) -> None:
    (tmp_path / "x.css").write_text(style)
    assert extension("site_links").broken(tmp_path) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[hosts.md](hosts.md)", "[](hosts.md)"),
        ("[docs/hosts.md](./hosts.md#anchor)", "[](hosts.md#anchor)"),
        ("[several machines](hosts.md)", "[several machines](hosts.md)"),
        ("[ddp.py](../examples/ddp.py)", "[ddp.py](file-of-the-project:examples/ddp.py)"),
        ("[all](../examples)", "[all](file-of-the-project:examples)"),
        ("[out](https://example.org/x.py)", "[out](https://example.org/x.py)"),
        ("```\n[ddp.py](../examples/ddp.py)\n```", "```\n[ddp.py](../examples/ddp.py)\n```"),
        ("````md\n```\n````\n[all](../examples)", "````md\n```\n````\n[all](file-of-the-project:examples)"),
    ],
)
def test_links_of_a_page(text: str, wanted: str) -> None:
    assert extension("site_sources").links(text, "page", DOCS, DOCS) == wanted


def test_links_of_a_file_of_the_root() -> None:
    links = extension("site_sources").links
    assert links("[docs/hosts.md](docs/hosts.md)", "index", ROOT, DOCS) == "[](hosts.md)"
    assert links("![screen](docs/pictures/tui.svg)", "index", ROOT, DOCS) == "![screen](pictures/tui.svg)"
    assert links("[hosts](docs/hosts.md)", "x/index", ROOT, DOCS / "x") == "[hosts](../hosts.md)"
