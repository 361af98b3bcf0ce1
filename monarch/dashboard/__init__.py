"""The dashboard of this program: `start()` serves it and prints its URL. See docs/dashboard.md.

Inside: the process beside a program, and all that it serves over HTTP, so that questions never take the program's time.

    process/     the observer: what it holds, who may ask, how a program starts it
    routes/      the routes of telemetry, of the admin API and of the pages
    pages/       what each route of the pages answers: a query (queries.py) and a shape (shapes.py, grids.py, icicle.py)
    static/      the pages: HTML, CSS and ES modules as they are sent, nothing is built and nothing comes from elsewhere
    starting.py  how a program opens its dashboard

It reads: the telemetry store by SQL, and what lives by the program's admin socket. Nothing here changes a program.
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
