"""Reactions to an error of the kernel while dialling and while accepting. One table for all sockets; no I/O.

A process or a machine that is out of something (descriptors, memory, room in a queue) has it again sooner or later: such an
error says nothing of the other side. Whatever is not in the table fails what it was for, with its reason: it is never taken
for the end of the other process, which somebody would then wait to be told of.
"""

from __future__ import annotations

import enum
import errno
import os

from monarch._linux.descriptors import OUT_OF


class OnDial(enum.Enum):
    ENDED = "nobody listens there: its agent knows whether it is to come or has ended"
    LATER = "dial again after a pause, a bounded number of seconds"
    FAIL = "give up at once what was to be sent, with the reason"


class OnAccept(enum.Enum):
    WAIT = "no connection waits"
    NEXT = "that connection is gone; another may wait"
    PAUSE = "accept again after a pause: the kernel would tell of the waiting connection again and again"


_ENDED = frozenset(
    {errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ENOTCONN}
)
# EAGAIN: the queue of a Unix socket is full. The rest: the network, which may be better in a moment.
_LATER = OUT_OF | {
    errno.EAGAIN,
    errno.EINTR,
    errno.ETIMEDOUT,
    errno.EHOSTUNREACH,
    errno.EHOSTDOWN,
    errno.ENETUNREACH,
    errno.ENETDOWN,
    errno.EADDRNOTAVAIL,
}

# accept(2): errors of the connection that was waiting, told by the call that would have returned it.
_OF_ONE = frozenset(
    {
        errno.ECONNABORTED,
        errno.EINTR,
        errno.ENETDOWN,
        errno.EPROTO,
        errno.ENOPROTOOPT,
        errno.EHOSTDOWN,
        errno.ENONET,
        errno.EHOSTUNREACH,
        errno.EOPNOTSUPP,
        errno.ENETUNREACH,
        errno.ETIMEDOUT,
        errno.EPERM,  # a firewall's
    }
)


def on_dial(error: int | None) -> OnDial:
    """`error`: the errno, None for a connection that broke as soon as it was there."""
    if error is None or error in _ENDED:
        return OnDial.ENDED
    return OnDial.LATER if error in _LATER else OnDial.FAIL


def on_accept(error: int | None) -> OnAccept:
    if error in (errno.EAGAIN, errno.EWOULDBLOCK):
        return OnAccept.WAIT
    return OnAccept.NEXT if error in _OF_ONE else OnAccept.PAUSE


def explain(exc: OSError) -> str:
    """Returns what the kernel says, and the way out where there is one."""
    error = exc.errno
    if error is None:
        return str(exc)
    text = os.strerror(error)
    if error == errno.EMFILE:
        import resource  # for messages only

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"{text}: this process may have {limit} (raise it with `ulimit -n`, or close what is not used)"
    if error == errno.ENFILE:
        return f"{text}, on the whole machine (see sysctl fs.file-max)"
    if error == errno.EAGAIN:
        return "its queue of connections is full; it may be busy or stopped"
    return text


FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0  # seconds between two attempts to dial; each pause is twice the one before
PATIENCE = 30.0  # seconds after the first of them


class Redial:
    """The time to dial again, after errors that say so."""

    __slots__ = ("_pause", "_until")

    def __init__(self, now: float) -> None:
        self._until = now + PATIENCE
        self._pause = FIRST_PAUSE

    def after(self, now: float, error: int | None) -> float | None:
        """Seconds until the next attempt; None: there is to be none."""
        if on_dial(error) is OnDial.FAIL or now >= self._until:
            return None
        pause, self._pause = self._pause, min(LONGEST_PAUSE, 2 * self._pause)
        return min(pause, self._until - now)
