"""The command `monarch-dashboard`: the dashboard of a saved file, or of a simulated job. `monarch dashboard` shows a program
that runs."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

_SAVED = "MONARCH_DB_PATH"
MOST_RANKS = 16_384

_TEXT = """\
Serves the dashboard of what a program has recorded, from a file, or of a job that is simulated, which grows while you
look, and in which a rank fails. `monarch dashboard` shows the programs that run.

examples:
  monarch-dashboard --simulate
  monarch-dashboard --simulate --ranks 4096 --failure-at 20
  monarch-dashboard --db run.duckdb --port 5000
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return _serve(options)
    except KeyboardInterrupt:
        return 130
    except (OSError, ValueError, ImportError) as exc:
        print(f"monarch-dashboard: {exc}", file=sys.stderr)
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
    what.add_argument("--simulate", action="store_true", help="a simulated job; also without --db")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (127.0.0.1); elsewhere a token is needed")
    parser.add_argument(
        "--port", type=_number(int, 0, 65535), default=5000, help="(5000; taken: any free one; 0: any free one)"
    )
    parser.add_argument("--ranks", type=_number(int, 1, MOST_RANKS), default=64, help="of the simulated job (64)")
    parser.add_argument("--interval", type=_number(float, 0.1, 60), default=1.0, metavar="S", help="of its growth (1)")
    parser.add_argument(
        "--failure-at", type=_number(float, 1, 1e6), default=60.0, metavar="S", help="when a rank of it fails (60)"
    )
    parser.add_argument(
        "--past",
        type=_number(float, 0, 3600),
        default=0.0,
        metavar="S",
        help="how long it has been running already (0)",
    )
    return parser


def _number(kind: type, least: float, most: float) -> Any:
    """Reads a number for argparse."""

    def parsed(text: str) -> Any:
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not between {least:,g} and {most:,g}")
        return value

    parsed.__name__ = "number"
    return parsed


def _serve(options: argparse.Namespace) -> int:
    from monarch.dashboard.pages.api import PageData
    from monarch.dashboard.process.http_server import HttpServer, Site
    from monarch.dashboard.routes.page_routes import routes_of
    from monarch.dashboard.routes.telemetry_routes import query_routes

    saved = options.db or ("" if options.simulate else os.environ.get(_SAVED, ""))
    store, simulation = _saved(saved) if saved else _simulated(options)
    server = HttpServer()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    try:
        api = PageData(store, simulation, **({} if simulation is not None else {"now": None}))
        site = Site([*routes_of(api), *query_routes(store)], options.host, options.port, secrets.token_urlsafe(24))
        served = server.serve(site)
        if served.note:
            print(f"monarch-dashboard: {served.note}", file=sys.stderr)
        print(f"Monarch Dashboard: {served.url}", flush=True)
        ended.wait()
    finally:
        server.close()
        if simulation is not None:
            simulation.close()
        store.close()
    return 0


def _saved(path: str) -> tuple[Any, None]:
    from monarch.telemetry.store import Store

    return Store.open(path), None


def _simulated(options: argparse.Namespace) -> tuple[Any, Any]:
    from monarch.dashboard.pages.simulation import Simulation
    from monarch.telemetry.store import Store

    store = Store()
    simulation = Simulation(
        store, ranks=options.ranks, failure_at=options.failure_at, interval=options.interval, past=options.past
    )
    simulation.start()
    return store, simulation


def run() -> None:
    """Runs the command; ends without tearing the interpreter down, about which the engine of the tables has much to say."""
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    run()
