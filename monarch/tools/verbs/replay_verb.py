"""monarch replay: an actor's recording, played again alone."""

from __future__ import annotations

import argparse

from monarch._linux import terminal
from monarch.tools import json_output

NAME = "replay"
LINE = "runs a recorded actor again, alone and here, under pdb if you like"
TEXT = """\
Builds the actor of a recording in this process and gives it the same messages and answers in the same order. Nothing is
sent anywhere. MONARCH_RECORD=trainers makes recordings as a program runs; docs/replay.md says more.

A recording holds pickles: replaying it runs what its writer wanted. Files of other users, or that others may write, need
--trust.

exit codes: 0 it went as recorded; 1 a message failed, as said; 3 it went another way than then; others for errors

examples:
  monarch replay trainers-341-20260312-101500-4711.monarchrec
  monarch replay FILE --until-failure --pdb        pdb where it failed
  monarch replay FILE --at 57                      pdb at the beginning of message 57
  monarch replay FILE --class train.Trainer        the class as it is now: is it right now?
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a recording (*.monarchrec)")
    parser.add_argument("--at", type=_number, default=0, metavar="N", help="pdb at the beginning of message N (from 1)")
    parser.add_argument("--until-failure", action="store_true", help="end with the first message that fails")
    parser.add_argument("--pdb", action="store_true", help="pdb where a message fails, or goes another way than then")
    parser.add_argument(
        "--class",
        dest="cls",
        default="",
        metavar="MODULE.NAME",
        help="the class as it is here, to try a correction of it",
    )
    parser.add_argument("--trust", action="store_true", help="also a file that others may have written")
    parser.add_argument(
        "--patience", type=float, default=60.0, metavar="SECONDS", help="without progress, until it is given up (60)"
    )


def _number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def run(options: argparse.Namespace) -> int:
    from monarch.replay import replay

    if options.json and (options.pdb or options.at):
        options.parser.error("--pdb and --at talk to people: leave them or --json out")
    outcome = replay(
        options.file,
        at=options.at,
        until_failure=options.until_failure,
        pdb=options.pdb,
        trust=options.trust,
        cls=options.cls,
        patience=options.patience,
        say=terminal.note if options.json else terminal.show,
    )
    if options.json:
        from monarch.tools.documents import LeftRecording, Replayed

        left = outcome.divergence
        return json_output.end(
            Replayed(
                exit_status=outcome.status,
                messages=outcome.messages,
                ended=outcome.ended,
                failure=outcome.failure,
                divergence=None
                if left is None
                else LeftRecording(left.message, left.method, left.then, left.now, left.where),
                notes=outcome.notes,
            )
        )
    for note in outcome.notes:
        terminal.show(f"  note: {note}")
    if outcome.divergence is not None and not options.pdb:
        terminal.show(str(outcome.divergence))
    elif outcome.failure and not options.pdb:
        terminal.show(outcome.failure)
    count = f"{outcome.messages} message{'s' if outcome.messages != 1 else ''} handled"
    terminal.show(f"{count}{'' if outcome.divergence is not None else ' as then'}; {outcome.ended}")
    return outcome.status
