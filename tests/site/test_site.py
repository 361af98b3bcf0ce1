"""Links of the documentation's site: what is said of broken ones, and where those out of a page lead; what its search knows.

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


@pytest.mark.parametrize(
    ("page", "wanted"), [("how-to/services", "docs/how-to/services.md"), ("changelog", "CHANGELOG.md")]
)
def test_where_a_page_is_edited(page: str, wanted: str) -> None:
    assert extension("site_sources").file_of(page) == wanted
    assert (ROOT / wanted).is_file()


def test_the_sections_of_a_page() -> None:
    page = """<nav><h2>not this</h2></nav><article><section id="a"><h1>A <code>b</code><a class="headerlink">#</a></h1>
        <p>one</p><svg><title>no</title></svg><section id="c"><h2>C</h2><p>two</p></section><p>three</p><dl class="simple">
        <dt>four</dt></dl><dl class="py function"><dt class="sig" id="m.f"><a class="headerlink">#</a>f(x)</dt><dt class="sig"
        id="m.g">g</dt><dd>five<dl class="field-list"><dt>six</dt></dl></dd></dl></section></article><footer>no</footer>"""
    assert list(extension("site_search").sections(page)) == [
        ("a", "A b", "one three four"),
        ("c", "C", "two"),
        ("m.f", "m.f", "f(x) g five six"),
    ]


def test_pages_that_teach_come_before_those_that_record(tmp_path: Path) -> None:
    search = extension("site_search")
    weights = [search.weight(name) for name in ("tutorial/2-mesh", "rdma", "reference/rdma", "source/examples/ddp.py")]
    assert weights == sorted(weights, reverse=True) and 0 not in weights
    (tmp_path / "how-to").mkdir()
    for name in ("log", "internals", "index", "rdma", "how-to/async"):
        (tmp_path / f"{name}.html").write_text("<article><section id='x'><h1>X</h1></section></article>")
    found = search.index(tmp_path)
    assert [name for name, _, _ in found] == ["how-to/async", "rdma"] and found[1][2] == [("x", "X", "")]


@pytest.mark.parametrize(
    ("page", "wanted"),
    [("rdma", True), ("how-to/async", True), ("how-to/index", False), ("tutorial/2-mesh", False), ("settings", False)],
)
def test_which_pages_say_how_long_they_take(page: str, wanted: bool) -> None:
    assert extension("reading_time").is_read(page) == wanted


def test_how_long_a_page_takes() -> None:
    pytest.importorskip("docutils")
    from docutils.core import publish_doctree

    prose, code = "word " * 390, "::\n\n" + "    x\n" * 60
    assert extension("reading_time").minutes(publish_doctree(f"{prose}\n\n{code}")) == 5
    assert extension("reading_time").minutes(publish_doctree("word")) == 1
