"""monarch demo: the package at work, without a file of one's own."""

from __future__ import annotations

import argparse
import inspect
import time

from monarch._linux import terminal
from monarch.tools import json_output

NAME = "demo"
LINE = "what this can do, in a few seconds: four processes, a call, a death, a restart"
TEXT = """\
Starts four processes on this machine, calls all of them and one of them, kills one, shows the error that names it, and
starts it anew. Shows each line of code with what came of it. Needs no torch, writes no file, leaves nothing behind.

examples:
  monarch demo
  monarch demo --source > demo.py       the program itself
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--source", action="store_true", help="print the program rather than run it")


def run(options: argparse.Namespace) -> int:
    from monarch.tools import demo
    from monarch.tools.documents import DemoDone, DemoStep

    if options.source:
        text = inspect.getsource(demo)
        if options.json:
            return json_output.end(DemoDone(source=text, seconds=0.0))
        terminal.show(f'{text}\n\nif __name__ == "__main__":\n    run(lambda code, said: print(code, said, sep="\\n"))')
        return 0
    began = time.monotonic()

    def show(code: str, said: str) -> None:
        if options.json:
            json_output.show(DemoStep(code=code, said=said))
        else:
            terminal.show("".join(f">>> {line}\n" for line in code.splitlines()) + f"{said}\n")

    demo.run(show)
    seconds = round(time.monotonic() - began, 2)
    if options.json:
        return json_output.end(DemoDone(source=None, seconds=seconds))
    terminal.show(f"{seconds} s in all. Next: `monarch init my_project`, and `monarch demo --source` for this program.")
    return 0
