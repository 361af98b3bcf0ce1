"""Holds labs up until Ctrl-C, and prints the environment that leads to them:

python -m tests.lab              both
python -m tests.lab slurm        four nodes, partitions "lab" (the default) and "half"
python -m tests.lab slurm=16     sixteen nodes
python -m tests.lab ssh          three hosts
"""

from __future__ import annotations

import shlex
import signal
import sys
from contextlib import ExitStack

from tests.lab import slurm, ssh

KINDS = {"slurm": (slurm.why_not, slurm.SlurmLab), "ssh": (ssh.why_not, ssh.SshLab)}


def main(wanted: list[str]) -> int:
    asked = [(kind, number) for kind, _, number in (word.partition("=") for word in wanted or KINDS)]
    if unknown := [kind for kind, number in asked if kind not in KINDS or (number and not number.isdecimal())]:
        print(f"no lab is called {unknown[0]}; there are: {', '.join(KINDS)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as stack:
        try:
            for kind, number in asked:
                why_not, make = KINDS[kind]
                if reason := why_not():
                    print(f"lab {kind}: {reason}", file=sys.stderr)
                    return 1
                lab = stack.enter_context(make(*([int(number)] if number else [])))
                machines = " ".join(machine.name for machine in lab.site.machines)
                print(f"# {kind}: {machines}; logs in {lab.site.folder}")
                for name, value in lab.variables.items():
                    print(f"export {name}={shlex.quote(value)}")
            print("# up until Ctrl-C", flush=True)
            signal.pause()
        except KeyboardInterrupt:
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
