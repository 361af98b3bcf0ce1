"""The errors of references."""

from __future__ import annotations


class ReferenceLost(RuntimeError):
    """The value of a reference is gone. The text says who made it, in which process, and how that ended.

    Since 0.2.0.
    """

    _told_whole = True  # see ActorError


class ReferenceLimitError(RuntimeError):
    """A process keeps as many bytes for references as it may, and one more did not fit. The text says how many of how many.

    Since 0.2.0.
    """
