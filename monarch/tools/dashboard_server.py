"""The command `monarch-dashboard`: the dashboard of a saved file. `monarch dashboard` shows a program that runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from monarch._linux import private_files, terminal

if TYPE_CHECKING:
    from monarch.dashboard.pages.live_data import LiveData
    from monarch.telemetry.store import Store

_SAVED = "MONARCH_DB_PATH"

_TEXT = """\
Serves the dashboard of what a program has recorded, from a file. `monarch dashboard` shows the programs that run;
examples/simulated_dashboard.py, beside the source, a job that is simulated.

examples:
  monarch-dashboard --db run.duckdb --port 5000
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    path = options.db or os.environ.get(_SAVED, "")
    try:
        if options.simulate:
            raise ValueError("a simulated job is an example: python examples/simulated_dashboard.py, beside the source")
        if not path:
            raise ValueError(f"say which file: --db PATH, or {_SAVED}")
        from monarch.telemetry.store import Store

        if not options.trust:
            check_own(path)
        with contextlib.closing(Store.open(path)) as store:
            return serve(store, None, options.host, options.port)
    except KeyboardInterrupt:
        return 130
    except (OSError, ValueError, ImportError) as exc:
        terminal.note(f"monarch-dashboard: {exc}")
        return 1


def _parser() -> argparse.ArgumentParser:
    description, _, examples = _TEXT.partition("examples:")
    parser = argparse.ArgumentParser(
        "monarch-dashboard",
        description=description.rstrip(),
        epilog="examples:" + examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--db", metavar="PATH", help=f"a DuckDB file with tables of telemetry (default: {_SAVED})")
    parser.add_argument("--trust", action="store_true", help="also a file that others may have written")
    what.add_argument("--simulate", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (127.0.0.1); elsewhere a token is needed")
    parser.add_argument(
        "--port", type=number(int, 0, 65535), default=5000, help="(5000; taken: any free one; 0: any free one)"
    )
    return parser


def check_own(path: str) -> None:
    """ValueError when somebody else can have written the file, or one beside it, which the engine would read as well."""
    if os.path.isfile(path):
        try:
            os.close(private_files.open_to_read(path, own_group=True))
            private_files.closed_folder(os.path.dirname(os.path.abspath(path)))
        except private_files.UntrustedFileError as exc:
            raise ValueError(
                f"{exc}. The engine is not made for databases that mean harm: copy it into a folder of yours, if you know "
                "where it comes from, or say --trust"
            ) from None


def number(kind: type, least: float, most: float) -> Any:
    """Returns what parses such a number, for argparse."""

    def parsed(text: str) -> Any:
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not between {least:,g} and {most:,g}")
        return value

    parsed.__name__ = "number"
    return parsed


def serve(store: Store, live: LiveData | None, host: str, port: int) -> int:
    """Serves the dashboard of `store` until SIGTERM comes. `live`: None for a saved program."""
    from monarch._http.server import HttpServer, Site
    from monarch.dashboard.pages.api import PageData
    from monarch.dashboard.routes.page_routes import routes_of
    from monarch.dashboard.routes.telemetry_routes import query_routes

    server = HttpServer()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    try:
        data = PageData(store, live) if live is not None else PageData(store, None, None)
        served = server.serve(Site([*routes_of(data), *query_routes(store)], host, port, secrets.token_urlsafe(24)))
        if served.note:
            terminal.note(f"monarch-dashboard: {served.note}")
        terminal.show(f"Monarch Dashboard: {served.url}")
        ended.wait()
    finally:
        server.close()
    return 0


def run() -> None:
    """The command."""
    end_process(main())


def end_process(status: int) -> None:
    """Ends without tearing the interpreter down, about which the engine of the tables has much to say."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    run()
