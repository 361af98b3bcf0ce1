"""Bytes of a job whose messages go by TLS: RDMA devices do not encrypt, so they move none unless a setting allows it.

Both sides are asked: the side that begins a transfer, and the owner, who is told so in the request.
"""

from __future__ import annotations

from monarch.actor.lowlevel import stream_encrypted, stream_obstacle
from monarch.config import settings
from monarch.rdma.buffer_handle import BufferHandle


def encrypted(handle: BufferHandle) -> bool:
    """True if messages to the owner go by TLS. Asks this host's agent, once a host."""
    return stream_encrypted(handle.service)


def forbidden() -> str:
    """Returns why bytes may not go in plain where messages are encrypted; "" when the setting allows it."""
    if settings.rdma_allow_plain_bytes():
        return ""
    return (
        "the job uses TLS, and RDMA devices do not encrypt what they move; rdma_allow_plain_bytes=True (in every process) "
        "allows it where everybody on the network of the devices is trusted"
    )


def why_unavailable(handle: BufferHandle) -> str:
    """Returns why devices may not move bytes between this process and the owner, as far as networks go; "" when they may."""
    return forbidden() if encrypted(handle) else stream_obstacle(handle.service)
