"""How a queue pair's packets go: the settings that say so, which each end reads for its own.

A packet that is not acknowledged is sent again after 4.096 us x 2^`timeout`, `retries` times; by the specification
(InfiniBand Architecture Specification, volume 1, 9.7.6.1.3) a device may wait up to four times as long. With the defaults,
20 and 7, the connection survives a network that is away for half a minute, and fails 34 s to 2.5 min after its last
acknowledgement. Nobody waits for that when the other process has ended or has closed its side: that is asked for by
message (see `queue_pair_link`), and a transfer's own timeout ends it whatever the device does.
"""

from __future__ import annotations

from typing import NamedTuple

from monarch.config import settings
from monarch.rdma.backends.ibverbs.gids import Gid


class Path(NamedTuple):
    """Of a queue pair: its own address, and what its packets carry. `pkey_index`: a slot of the port's partition table."""

    gid: Gid
    pkey_index: int = 0
    traffic_class: int = 0
    service_level: int = 0
    timeout: int = 20
    retries: int = 7


def path_of(gid: Gid) -> Path:
    """As the settings are now."""
    return Path(
        gid,
        settings.rdma_ib_pkey_index(),
        settings.rdma_ib_traffic_class(),
        settings.rdma_ib_service_level(),
        settings.rdma_ib_timeout(),
        settings.rdma_ib_retry_count(),
    )
