"""How the pages of this folder become the site: `make site`.

Sphinx reads the same Markdown that a code host shows. A link to a file outside of this folder leads to a copy of it, which
the site carries; see site_sources.py. A warning ends the build.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]  # the package that autodoc reads, and our own extensions

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

project = PROJECT["name"]
version = release = PROJECT["version"]
author = "The pymonarch authors"
copyright = author
html_title = f"{project} {release}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "site_sources",
    "site_search",
    "reading_time",
    "docstrings",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_site", "**/README.md"]
nitpicky = True
nitpick_ignore = [("py:obj", "monarch.references.fetched.T")]  # of the alias Fetched[T]

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
myst_url_schemes = ["http", "https", "mailto", "file-of-the-project"]

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_default_options = {"members": True, "inherited-members": True}  # docstrings.py says which of them
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_static_path = ["_static"]
templates_path = ["_templates"]
# The mark of the dashboard.
html_logo = html_favicon = "../monarch/dashboard/static/icon.svg"
# For coding agents: they look for these at the root of a site.
html_extra_path = ["llms.txt", "../monarch/tools/SKILL.md"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_sourcelink = False
html_copy_source = False
copybutton_exclude = ".linenos, .gp, .go"
pygments_style = "a11y-light"
pygments_dark_style = "monokai"
