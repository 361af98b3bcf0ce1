"""The bound on descriptors: a process may have so many and no more."""

from __future__ import annotations

import errno

# This process, or the machine, has none left of what a connection needs; it has it again sooner or later.
OUT_OF = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC})  # ENOSPC: of epoll

_SHARE = 4


def for_unknown(most: int) -> int:
    """Returns how many connections a door may hold that are not known to be wanted: `most`, but no more than one in four of
    the descriptors of this process, so that those are left that its owner needs."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if limit < 0 else max(1, min(most, limit // _SHARE))
