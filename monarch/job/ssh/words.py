"""What ssh and a worker behind it have said, as a sentence that names the host and what to do."""

from __future__ import annotations

SSH_FAILED = 255  # ssh's own status for what goes wrong on the way
NOT_FOUND = (126, 127)  # a shell's, for a program that is not there or cannot be run

_MOST = 6  # lines that are quoted

# Of what was said, in any letter case -> what to do.
_ADVICE = {
    "no module named": "this package is not installed for {python} there: install pymonarch, or give python_exe the "
    "interpreter that has it",
    "address already in use": "port {port} is taken there: end what listens at it, or give another monarch_port",
    "cannot assign requested address": "the host has not that address itself (it may be behind NAT): give "
    "bind_to='0.0.0.0'",
    "permission denied": "the host does not accept the key: see that `ssh {host} true` works without a question",
    "host key verification failed": "the host's key is not the one that is known, or none is: see that `ssh {host} true` "
    "works without a question",
    "could not resolve hostname": "the name cannot be looked up: see the spelling, or name it in ~/.ssh/config",
    "connection refused": "nothing listens at its ssh port: see that sshd runs there",
    "timed out": "it does not answer: see that it is up and can be reached from here",
    "no route to host": "it cannot be reached from here",
}


def failure(host: str, status: int, said: str, python: str, port: int) -> str:
    """Why there is no worker on `host`: ssh ended with `status` (negative: by a signal) after `said` on stderr."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("Warning: Permanently")]
    words = (
        " / ".join(lines if len(lines) <= _MOST else [*lines[:2], "...", *lines[2 - _MOST :]]).rstrip(".")
        or "it said nothing"
    )
    if status == SSH_FAILED:
        what = "ssh could not get there"
    elif status in NOT_FOUND:
        what = f"{python} could not be run there"
    elif status < 0:
        what = f"ssh was killed by signal {-status}"
    else:
        what = f"the worker ended with status {status}"
    if status in NOT_FOUND:
        advice: str | None = f"give python_exe the path of an interpreter on {host} that has pymonarch"
    else:
        found = next((text for sign, text in _ADVICE.items() if sign in words.lower()), None)
        advice = found and found.format(host=host, python=python, port=port)
    return f"host {host}: {what}: {words}" + (f". {advice[0].upper()}{advice[1:]}" if advice else "")


def host_name(configuration: str) -> str | None:
    """The name or address that `ssh -G host` says ssh would connect to."""
    return _option(configuration, "hostname")


def has_connect_timeout(configuration: str) -> bool:
    """Whether the user's configuration bounds the time for connecting."""
    return _option(configuration, "connecttimeout") not in (None, "none", "0")


def _option(configuration: str, name: str) -> str | None:
    for line in configuration.splitlines():
        key, _, value = line.partition(" ")
        if key.lower() == name:
            return value.strip()
    return None
