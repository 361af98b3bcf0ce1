"""`monarch tui` and `monarch-tui`: the arguments, and which of the three ways to look is meant."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch._linux import terminal
from monarch.admin.screen import connection
from monarch.admin.screen.themes import DEFAULT, THEMES
from monarch.admin.screen.words import LANGUAGES

if TYPE_CHECKING:
    from monarch.admin.screen.sources import ScreenSource

_WIDTH = 120  # columns, where there is no terminal
_LEAST = 100  # milliseconds between two refreshes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-a", "--addr", metavar="URL", help="an admin server, as it was printed; else a program here")
    parser.add_argument("--admin-port", type=int, metavar="N", help="its port, where --addr has none (1729)")
    parser.add_argument("--pid", type=int, metavar="PID", help="the program on this machine, where several run")
    parser.add_argument("--refresh-ms", type=int, default=2000, metavar="N", help="between two looks (2000)")
    parser.add_argument("--theme", choices=tuple(THEMES), default=DEFAULT, help="colours")
    parser.add_argument("--lang", choices=LANGUAGES, default="en", help="language")
    parser.add_argument(
        "--tls-ca", default="", metavar="FILE", help="PEM: whom the server's certificate is checked against"
    )
    parser.add_argument("--tls-cert", default="", metavar="FILE", help="PEM: the certificate that is shown")
    parser.add_argument("--tls-key", default="", metavar="FILE", help="PEM: its key")
    parser.add_argument("--plaintext", action="store_true", help="no TLS, whatever --addr says")
    parser.add_argument("--once", action="store_true", help="print what is shown first, and end; needs no terminal")
    parser.add_argument("--tree", action="store_true", help="hosts, processes and actors as a tree, not the ranks")
    parser.add_argument(
        "--diagnose", action="store_true", help="ask every node, print JSON; 0 when all is well, else 1"
    )
    parser.add_argument("--system", action="store_true", help="with --once --tree: the runtime's own actors too")
    parser.add_argument("--stopped", action="store_true", help="with --once --tree: actors that have ended too")


def run(options: argparse.Namespace) -> int:
    """Returns the exit status. ValueError and OSError for what cannot be looked at."""
    if options.refresh_ms < _LEAST:
        raise ValueError(f"--refresh-ms is {_LEAST} or more, got {options.refresh_ms}")
    if options.once and options.diagnose:
        raise ValueError("--once and --diagnose are two ways to look: give one of them")
    if not (options.once or options.diagnose) and not _is_terminal():
        terminal.note("This TUI requires a real terminal. (`--once` prints what it shows without one.)")
        return 1
    source = source_of(options)
    if options.diagnose:
        return _diagnose(source)
    if options.once:
        return _once(source, options)
    return _show(source, options)


def _is_terminal() -> bool:
    """False as well for one that obeys nothing, such as an editor's."""
    shown = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    return shown and os.environ.get("TERM") != "dumb"


def source_of(options: argparse.Namespace) -> ScreenSource:
    from monarch.admin.screen.sources import HttpSource, SocketSource

    tls = connection.TlsFiles(options.tls_ca, options.tls_cert, options.tls_key)
    if options.addr is None:
        if options.plaintext or tls != connection.TlsFiles() or options.admin_port is not None:
            raise ValueError("--plaintext, --tls-* and --admin-port say how --addr is spoken to, and there is none")
        from monarch.admin.programs import choose

        return SocketSource(choose(options.pid))
    if options.pid is not None:
        raise ValueError("--addr and --pid name two programs: give one of them")
    return HttpSource(connection.plan(options.addr, port=options.admin_port, plaintext=options.plaintext, tls=tls))


def _once(source: ScreenSource, options: argparse.Namespace) -> int:
    from monarch.admin.screen import once
    from monarch.admin.screen.sources import NoAnswer

    try:
        nodes = source.nodes()
        found = None if options.tree else source.doctor()
    except NoAnswer as exc:
        terminal.note(f"monarch tui: {exc}")
        return 1
    if options.tree:
        terminal.show(once.page(nodes, system=options.system, stopped=options.stopped))
    else:
        width = shutil.get_terminal_size((_WIDTH, 1)).columns
        terminal.show(once.ranks(source.name, nodes, source.nodes(), found, time.time(), width))
    return 0


def _diagnose(source: ScreenSource) -> int:
    from monarch.admin.screen import diagnostics

    report = diagnostics.run(source, time.monotonic)
    terminal.show(json.dumps(report.json(), indent=2))
    return 0 if report.healthy else 1


def _show(source: ScreenSource, options: argparse.Namespace) -> int:
    try:
        from monarch.admin.screen.app import MeshAdmin
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.split(".")[0] not in ("textual", "rich"):
            raise
        raise ImportError(f"the screen needs {exc.name}: pip install 'pymonarch[tui]' (--once does without)") from None
    from monarch.admin.screen.header import Options

    MeshAdmin(source, Options(options.refresh_ms / 1000, options.theme, options.lang, options.tree)).run()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the console script `monarch-tui`."""
    parser = argparse.ArgumentParser(prog="monarch-tui", description="A program that runs, as a tree on the terminal.")
    add_arguments(parser)
    try:
        return run(parser.parse_args(arguments))
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, ImportError) as exc:
        terminal.note(f"monarch-tui: {exc}")
        return 1
