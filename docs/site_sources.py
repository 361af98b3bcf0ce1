"""Files outside of the documentation that its pages link to, as pages of the site.

`[ddp.py](../examples/ddp.py)` works where the Markdown is read in its repository. The site has none beside it: there the
same link leads to a page with the file's text. A folder is a page with a list of its files. What is no text is not
shown: a warning says so, which ends `make site`.

Some pages of the site are files of the project's root, such as its changelog. `make site EDIT=ADDRESS` gives each page a
link to where its file is edited: the address is that of the root, as a code host has it for a branch.
"""

from __future__ import annotations

import html
import json
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers import ClassNotFound, get_lexer_for_filename
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
SCHEME = "file-of-the-project"
# A Markdown link, or picture, with a relative path.
LINK = re.compile(r"\[(?P<text>[^][]*)\]\((?P<path>[\w./-]+)(?P<anchor>#[^)\s]*)?\)")
FENCE = re.compile(r" *(`{3,}|~{3,})")
# Pages that are files of the root; what the page's own file says follows.
COPIES = {"contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}
LARGEST = 200_000  # bytes of a file that is shown


class Sources:
    """Which files were linked, by their path from the root."""

    def __init__(self) -> None:
        self.linked: set[str] = set()

    def read(self, app: Sphinx, docname: str, content: list[str]) -> None:
        """Links of a page that leave the folder of the documentation get a scheme of their own."""
        here = Path(app.env.doc2path(docname)).parent
        content[0] = links(content[0], docname, here, here)
        if docname in COPIES:
            content[0] = f"{links((ROOT / COPIES[docname]).read_text(), docname, ROOT, here)}\n{content[0]}"

    def resolve(self, app: Sphinx, doctree: nodes.document, docname: str) -> None:
        """Those links lead to the pages of their files."""
        pages = {path: page for page, path in COPIES.items()}
        for reference in doctree.findall(nodes.reference):
            path, hash_, anchor = reference.get("refuri", "").partition("#")
            if not path.startswith(SCHEME + ":"):
                continue
            path = path.removeprefix(SCHEME + ":")
            if path not in pages:
                self.linked.add(path)
            reference["refuri"] = (
                app.builder.get_relative_uri(docname, pages.get(path) or page_of(path)) + hash_ + anchor
            )
            reference["internal"] = True

    def pages(self, app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
        """The pages of all files that were linked, and of what is in the folders."""
        folders = {path for path in self.linked if (ROOT / path).is_dir()}
        files = self.linked - folders
        for path in sorted(folders):
            inside = sorted(each.relative_to(ROOT).as_posix() for each in (ROOT / path).iterdir() if shown(each))
            files.update(inside)
            body = f"<ul>{''.join(entry(app, path, each) for each in inside)}</ul>"
            yield page_of(path), context(path, body), "page.html"
        for path in sorted(files):
            yield page_of(path), context(path, listing(app, path)), "page.html"


def links(text: str, docname: str, origin: Path, here: Path) -> str:
    """Relative links of a text that lies in the folder `origin` and is shown as a page in `here`."""

    def other(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(origin / match["path"]))
        anchor = match["anchor"] or ""
        if not target.exists():
            logger.warning("there is no %s", match["path"], location=docname)
            return match[0]
        if target.is_relative_to(DOCS):
            named_by_file = target.suffix == ".md" and match["text"].endswith(target.name)
            text = "" if named_by_file else match["text"]  # the title of the page, in place of the name of its file
            return f"[{text}]({os.path.relpath(target, here)}{anchor})"
        return f"[{match['text']}]({SCHEME}:{target.relative_to(ROOT).as_posix()}{anchor})"

    lines, fence = [], ""
    for line in text.split("\n"):
        mark = FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence) and line.strip() == mark[1]:
            fence = ""
        lines.append(line if fence else LINK.sub(other, line))
    return "\n".join(lines)


def page_of(path: str) -> str:
    return posixpath.join("source", path, "index") if (ROOT / path).is_dir() else posixpath.join("source", path)


def shown(file: Path) -> bool:
    return file.is_file() and not file.name.startswith(".") and file.suffix not in {".pyc", ".png"}


def entry(app: Sphinx, folder: str, path: str) -> str:
    uri = app.builder.get_relative_uri(page_of(folder), page_of(path))
    return f'<li><a class="reference internal" href="{html.escape(uri)}">{html.escape(Path(path).name)}</a></li>'


def context(path: str, body: str) -> dict[str, Any]:
    return {"title": path, "body": f"<section><h1>{html.escape(path)}</h1>{body}</section>", "toc": ""}


def listing(app: Sphinx, path: str) -> str:
    data = (ROOT / path).read_bytes()
    try:
        text = data.decode() if len(data) <= LARGEST else ""
    except UnicodeDecodeError:
        text = ""
    if data and not text:
        logger.warning("%s cannot be shown: it is no text of at most %d bytes", path, LARGEST)
    if path.endswith(".ipynb"):
        return "".join(highlighted(app, source, kind) for kind, source in cells(text))
    return highlighted(app, text, language(path))


def language(path: str) -> str:
    try:
        return str(get_lexer_for_filename(path).aliases[0])
    except ClassNotFound:
        return "text"


def cells(text: str) -> Iterator[tuple[str, str]]:
    """Of a notebook: the language and the text of each."""
    for cell in json.loads(text)["cells"]:
        yield ("python" if cell["cell_type"] == "code" else "markdown"), "".join(cell["source"])


def highlighted(app: Sphinx, text: str, language: str) -> str:
    builder: Any = app.builder
    return str(builder.highlighter.highlight_block(text, language))


def edited_at(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Links each page of text to where its file is edited, in the theme's own way."""
    if app.config.edit_address:
        context["theme_source_edit_link"] = app.config.edit_address.rstrip("/") + "/" + file_of(page)


def file_of(page: str) -> str:
    return COPIES.get(page) or f"docs/{page}.md"


def setup(app: Sphinx) -> dict[str, bool]:
    sources = Sources()
    app.add_config_value("edit_address", "", "html", [str])
    app.connect("html-page-context", edited_at)
    app.connect("source-read", sources.read)
    app.connect("doctree-resolved", sources.resolve)
    app.connect("html-collect-pages", sources.pages)
    return {"parallel_read_safe": False, "parallel_write_safe": False}
