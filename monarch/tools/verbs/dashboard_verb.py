"""monarch dashboard: a program that runs, in the browser."""

from __future__ import annotations

import argparse
import json
import webbrowser

from monarch._linux import terminal
from monarch.tools import json_output

NAME = "dashboard"
LINE = "a program that runs, shown in the browser"
TEXT = """\
Opens the dashboard of a program of yours that runs on this machine, and prints its URL. The pages come from a process beside
the program, which is started now unless it runs already, and ends with the program. They show what has been recorded since
then: a program that calls monarch.dashboard.start() or monarch.telemetry.start(dashboard=True) is recorded from its
beginning.

The dashboard is for you on this machine. From elsewhere: ssh -L 8265:localhost:8265 HOST, or --host 0.0.0.0, which makes a
URL with a token in it.

examples:
  monarch dashboard
  monarch dashboard --open
  monarch dashboard --pid 4711 --port 0
"""

_SECONDS = 120.0  # for the process beside the program to start
_LARGEST = 1 << 16


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scheduler", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--pid", type=int, help="which program, where several run")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8265, help="(8265; taken: any free one; 0: any free one)")
    parser.add_argument("--open", action="store_true", help="open it in the browser of this machine as well")


def run(options: argparse.Namespace) -> int:
    from monarch.admin.programs import choose

    if options.scheduler is not None:
        raise ValueError(
            f"monarch dashboard shows a program that runs on this machine, and none of the scheduler {options.scheduler!r}: "
            f"give no name, or --pid"
        )
    if not 0 <= options.port <= 65535:
        raise ValueError(f"a port is a number from 0 to 65535, not {options.port}")
    program = choose(options.pid)
    with program.stream("dashboard", json.dumps({"host": options.host, "port": options.port}).encode()) as sock:
        sock.settimeout(_SECONDS)
        said = bytearray()
        while len(said) < _LARGEST and (part := sock.recv(_LARGEST)):
            said += part
    if not said:
        raise ConnectionError(f"the program (pid {program.pid}) has ended")
    answer = json.loads(said)
    if "error" in answer:
        raise ValueError(answer["error"])
    for text in answer["notes"]:
        terminal.note(text)
    if not options.json:
        terminal.show(f"Monarch Dashboard: {answer['url']}")
    if options.open and not webbrowser.open(answer["url"]):
        terminal.note("no browser could be opened here")
    if options.json:
        from monarch.tools.documents import DashboardOpen

        return json_output.end(DashboardOpen(url=answer["url"], pid=program.pid, notes=answer["notes"]))
    return 0
