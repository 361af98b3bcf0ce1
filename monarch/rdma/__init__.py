"""Memory of one process, read and written by others: separate data from control.

    buffer = RDMABuffer(tensor)                 # in the owner; send it anywhere, as an argument or a result
    await buffer.read_into(other_tensor)        # there: the bytes move once, over the fastest path both sides have
    await buffer.write_from(other_tensor)

General layout, from the inside out:

    local_memory   what counts as memory
    buffer_handle  what travels
    registry       the owner's buffers, and the words by which others know that they are registered
    transfer       one transfer
    copying        large copies in a few threads
    device_copies  copies with a device at one end
    lending        storages of devices that another process may open
    manager        the actors that serve other processes, and wait for them
    staging        memory of a device on a path that moves the host's
    backends       ways of moving bytes: a file each, or a folder (tcp, ibverbs, nixl)
    paths          which of them
    shared         memory that others map instead of copying it
    buffer         RDMABuffer
    action         RDMAAction
    shards         which part of a tensor somebody has (pure)
    layout         which bytes of whose parts a reader takes (pure)
    versions       when weights that were read are whole (pure)
    entries        what a model or a dict consists of
    block_gather   many pieces, read together; with devices: device_gather, device_batches
    published      one owner's weights, as others know them
    reading        plans of what goes where, from which owner
    state_dict     StateDict; what travels of it is in state_dict_handle
"""

from __future__ import annotations

from monarch._errors import (
    BufferDroppedError,
    OwnerEndedError,
    RDMAError,
    RDMAMemoryError,
    RDMAReadOnlyError,
    RDMASizeError,
    RDMATimeoutError,
    RDMAUnavailableError,
    StateDictBusyError,
    StateDictMismatchError,
)
from monarch.rdma.action import RDMAAction
from monarch.rdma.buffer import RDMABuffer
from monarch.rdma.paths import (
    RDMAReadTransferWarning,
    RDMATcpFallbackWarning,
    RDMAWriteTransferWarning,
    get_rdma_backend,
    is_ibverbs_available,
    is_rdma_available,
)
from monarch.rdma.shards import Shard
from monarch.rdma.shared import empty
from monarch.rdma.state_dict import StateDict
from monarch.rdma.state_dict_handle import StateDictHandle

__all__ = [
    "BufferDroppedError",
    "OwnerEndedError",
    "RDMAAction",
    "RDMABuffer",
    "RDMAError",
    "RDMAMemoryError",
    "RDMAReadOnlyError",
    "RDMAReadTransferWarning",
    "RDMASizeError",
    "RDMATcpFallbackWarning",
    "RDMATimeoutError",
    "RDMAUnavailableError",
    "RDMAWriteTransferWarning",
    "Shard",
    "StateDict",
    "StateDictBusyError",
    "StateDictHandle",
    "StateDictMismatchError",
    "empty",
    "get_rdma_backend",
    "is_ibverbs_available",
    "is_rdma_available",
]


def __dir__() -> list[str]:
    return sorted(__all__)
