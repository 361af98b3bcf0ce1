"""Takes away what a lab has made, when the process that made it closes the lab or dies.

Run as a program, with its input from the lab. Each line names one thing, and is answered by a line once it is noted:

    namespace PATH     whatever runs in this UTS namespace is killed
    hosts NAME         the block of that name is taken out of the hosts file
    folder PATH        is removed

At the end of its input it does all that, in this order, and exits with status 0; 1 if something could not be taken away.
It imports nothing of this project: it is to outlive whatever fails there.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import sys
import time

HOSTS_FILE = "/etc/hosts"
SECONDS = 30.0  # for everything killed to be gone


def with_block(text: str, name: str, lines: list[str]) -> str:
    """A hosts file's text with a marked block of these lines at its end, instead of an earlier one of that name."""
    text = without_block(text, name)
    if text and not text.endswith("\n"):
        text += "\n"
    return text + "\n".join([f"# {name} begins", *lines, f"# {name} ends", ""])


def without_block(text: str, name: str) -> str:
    return re.sub(
        rf"^# {re.escape(name)} begins\n.*?^# {re.escape(name)} ends\n", "", text, flags=re.DOTALL | re.MULTILINE
    )


def change_hosts_file(name: str, lines: list[str] | None) -> None:
    """Puts the block in, or with None takes it out. Written in place: in containers the file is a mount of its own."""
    with open(HOSTS_FILE, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # against other labs
        before = file.read()
        after = without_block(before, name) if lines is None else with_block(before, name, lines)
        if after != before:
            file.seek(0)
            file.write(after)
            file.truncate()


def inhabitants(namespaces: set[str]) -> list[int]:
    """The processes in these UTS namespaces, named as /proc names them: "uts:[4026531838]". No zombies."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.readlink(f"/proc/{entry}/ns/uts") in namespaces:
                    found.append(int(entry))
            except OSError:  # it has ended
                pass
    return found


def kill_all(namespaces: set[str]) -> list[int]:
    """Kills whatever is in them until nothing is; gives what would not go."""
    deadline = time.monotonic() + SECONDS
    while left := inhabitants(namespaces):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if time.monotonic() > deadline:
            return left
        time.sleep(0.01)  # the kernel tells nobody but parents
    return []


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    held: list[int] = []  # open namespaces: their numbers are not given to others while we may kill by them
    things: dict[str, list[str]] = {"namespace": [], "hosts": [], "folder": []}
    for line in sys.stdin:
        kind, _, thing = line.strip().partition(" ")
        if kind == "namespace":
            held.append(os.open(thing, os.O_RDONLY))
            thing = os.readlink(thing)
        things[kind].append(thing)
        print(flush=True)
    left = kill_all(set(things["namespace"]))
    for name in things["hosts"]:
        change_hosts_file(name, None)
    for folder in things["folder"]:
        shutil.rmtree(folder, ignore_errors=True)
    if left:
        print(f"processes that could not be killed: {left}", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
