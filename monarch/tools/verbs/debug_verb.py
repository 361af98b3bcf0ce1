"""monarch debug: breakpoints of a program that runs, and editors attached to its ranks."""

from __future__ import annotations

import argparse
import os
import socket
from typing import TYPE_CHECKING, Any

from monarch._linux import terminal
from monarch._text import one_line
from monarch.tools import json_output

if TYPE_CHECKING:
    from monarch.admin.programs import Program

NAME = "debug"
LINE = "breakpoints of a program that runs: list them, attach, continue; or attach an editor"
TEXT = """\
Without an action: a prompt at which the endpoints that stand at a breakpoint() are listed, attached to and let go; `help`
there shows the commands. Ctrl-C throws a line away, or detaches while a rank runs; Ctrl-D detaches, or leaves. What stands at
a breakpoint stays there.

The program is that of this user on this machine; --pid says which where there are several. --host and --port connect to a
debugger elsewhere, which listens as its program's MONARCH_DEBUG_SERVER_HOST says; MONARCH_DEBUG_TOKEN is the token that it
has printed.

examples:
  monarch debug                                 the prompt
  monarch debug list                            what stands at breakpoints now
  monarch debug attach trainers 3               straight to the pdb of rank 3
  monarch debug continue                        clear all breakpoints and let everything go on
  monarch debug --on-exception                  from now on every endpoint that raises stops there first
  monarch debug --dap 3 --mesh trainers         VS Code, or another editor that speaks DAP, on rank 3
"""
TOKEN = "MONARCH_DEBUG_TOKEN"
_DAP_PORT = 5678


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=("list", "attach", "continue"), help="do that, without the prompt")
    parser.add_argument("actor", nargs="?", metavar="ACTOR", help="of attach")
    parser.add_argument("rank", nargs="?", type=int, metavar="RANK", help="of attach")
    parser.add_argument("--pid", type=int, metavar="PID", help="of the program, where several run")
    parser.add_argument(
        "--host", metavar="HOST", help="a debugger that listens there, instead of a program of this machine"
    )
    parser.add_argument(
        "--port", type=int, metavar="PORT", help="its port (27000); with --dap the editor's port (5678)"
    )
    parser.add_argument(
        "--on-exception",
        action=argparse.BooleanOptionalAction,
        help="whether endpoints that raise stop there, until somebody has looked or debug_exception_timeout is over",
    )
    parser.add_argument("--dap", type=int, metavar="RANK", help="a port for an editor that debugs this rank")
    parser.add_argument(
        "--mesh", metavar="NAME", help="of --dap: a mesh of processes or actors (default: the only one)"
    )


def run(options: argparse.Namespace) -> int:
    attach = options.action == "attach"
    if attach != (options.rank is not None):
        options.parser.error("attach takes ACTOR RANK" if attach else f"{options.action} takes nothing behind it")
    prompt = options.dap is None and options.action not in ("list", "continue")
    if options.json and prompt and (options.on_exception is None or attach):
        options.parser.error("the prompt talks to people: --json goes with list, continue, --on-exception and --dap")
    if options.dap is not None:
        if options.action or options.host:
            options.parser.error("--dap goes with --pid, --mesh and --port only")
        return _serve_editor(options)
    if options.host or options.port:
        return _by_network(options)
    from monarch.admin.debugging import Visit, ask, stream
    from monarch.admin.programs import choose

    program = choose(options.pid)
    text = ""
    if options.on_exception is not None:
        text = _set_on_exception(program, options.on_exception)
        terminal.note(text)
    if options.action in ("list", "continue"):
        return _shown(options, **ask(program, Visit(options.action)))
    if options.json:
        return _shown(options, f"{text}\n")
    if options.on_exception is False and not attach:
        return 0
    from monarch.debugger.prompt import Prompt

    def names() -> Any:
        return [(name, rank) for name, rank in ask(program, Visit("names"))["names"]]

    with stream(program, Visit())[0] as sock:
        return Prompt(sock, names, "the program has ended, or another connection has taken over").run(
            f"attach {options.actor} {options.rank}" if attach else ""
        )


def _set_on_exception(program: Program, on: bool) -> str:
    from monarch.admin.debugging import Visit, ask

    answer = ask(program, Visit("exceptions", on=on))
    lines = [f"exceptions {'stop' if on else 'do not stop'} in {answer['processes']} processes"]
    return "\n".join([*lines, *(one_line(f"  {address}: {why}") for address, why in answer["silent"].items())])


def _shown(options: argparse.Namespace, text: str, stopped: Any = None) -> int:
    """Shows what the debugger has answered."""
    if not options.json:
        terminal.show(text, end="")
        return 0
    import msgspec

    from monarch.tools.documents import BreakpointList

    return json_output.end(msgspec.convert({"text": text, "stopped": stopped}, BreakpointList))


# --- a debugger that listens


def _by_network(options: argparse.Namespace) -> int:
    if options.on_exception is not None:
        options.parser.error("--on-exception asks a program of this machine: leave --host and --port out")
    from monarch.debugger.prompt import Prompt, exchange

    host, port = options.host or "localhost", options.port or 27000
    try:
        sock = socket.create_connection((host, port), 30.0)
    except OSError as error:
        raise OSError(
            f"no debugger listens on {host}:{port} ({error.strerror or error}): it listens from the first breakpoint on that "
            f"a program reaches"
        ) from None
    with sock:
        sock.settimeout(None)
        token = os.environ.get(TOKEN, "")
        if token:
            sock.sendall(f"{token}\n".encode())
        if options.action in ("list", "continue"):
            return _shown(options, exchange(sock, options.action))
        return Prompt(sock).run(f"attach {options.actor} {options.rank}" if options.action else "")


# --- editors


def _serve_editor(options: argparse.Namespace) -> int:
    from monarch.admin.debugging import Visit, ask, stream
    from monarch.admin.programs import choose
    from monarch.debugger import editor_port

    program = choose(options.pid)
    mesh, rank = options.mesh, options.dap
    facts = ask(program, Visit("check", mesh, rank))
    wanted = options.port if options.port is not None else _DAP_PORT
    with editor_port.listen(wanted) as listening:
        port = listening.getsockname()[1]
        if wanted not in (0, port):
            terminal.note(f"port {wanted} is taken: it is port {port} instead")
        name = f"rank {options.dap}" + (f" of {options.mesh}" if options.mesh else "")
        text = (
            f"An editor that attaches to 127.0.0.1:{port} debugs {name} (host {facts['host']}, pid {facts['pid']}).\n"
            f"For VS Code, in .vscode/launch.json:\n\n{editor_port.entry(name, port, facts['folder'])}\n\nCtrl-C ends this."
        )
        if options.json:
            from monarch.tools.documents import EditorPort

            json_output.show(EditorPort(port=port, text=text))
        else:
            terminal.show(text)
        editor_port.serve(
            listening,
            lambda: stream(program, Visit("editor", mesh, rank))[0],
            lambda text: terminal.note(f"monarch debug: {text}"),
        )
    return _shown(options, "")
