"""Ways of moving bytes, one a file, and what they have in common.

A new way is a file with a class like this and a line in `monarch/rdma/paths.py`.
"""

from __future__ import annotations

from typing import Protocol

from monarch.rdma.buffer_handle import BufferHandle
from monarch.rdma.transfer import Transfer


class Backend(Protocol):
    """One way of moving bytes between this process and the owner of a buffer."""

    # As `buffer.path` says it.
    name: str
    # Whether the bytes leave memory for sockets: the user is warned.
    uses_network: bool
    # Whether local memory may be a device's. If not, a transfer to or from a device goes through pinned memory.
    takes_devices: bool

    def why_unavailable(self, handle: BufferHandle) -> str:
        """Returns why the buffer cannot be reached this way from this process; "" when it can. Cheap the second time.

        An owner that has ended counts as reached: the transfer says so better than a longer way round would.
        """
        ...

    def start(self, transfer: Transfer) -> None:
        """Begins it and returns soon; whatever happens, `transfer.finish` is called once when nothing moves any more."""
        ...
