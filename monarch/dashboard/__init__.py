"""The dashboard of this program: `start()` serves it and prints its URL. See docs/dashboard.md.

Inside: pages in a browser that show a running program, and the JSON that they are made of.

    routes.py    the routes, for whoever serves them (monarch.observer, monarch-dashboard)
    api.py       what each route answers: a query (queries.py) and a shape (shapes.py, tree.py, grids.py, icicle.py)
    starting.py  how a program opens it
    static/      the pages: HTML, CSS and ES modules as they are sent, nothing is built and nothing comes from elsewhere

It reads: the telemetry store by SQL, and what lives by the program's door. Nothing here changes a program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch.dashboard.starting import start

__all__ = ["start"]


def __getattr__(name: str) -> Any:
    """`start` needs the runtime; what serves pages does not."""
    if name in __all__:
        import monarch.dashboard.starting

        return getattr(monarch.dashboard.starting, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
