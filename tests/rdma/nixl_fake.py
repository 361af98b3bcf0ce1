"""An imitation of NIXL's Python module, between processes of this machine.

It has the rules of the real one that matter here: memory is registered by kind and number of device, and only what was
registered so is moved; memory of a GPU is registered by a thread that uses that GPU, at an address that is none of the
host's; and what is written to a GPU of another process is there for certain only once something has been read behind it.
Here it is not there before.
"""

from __future__ import annotations

import json
import os
from typing import Any

from monarch._devices.memory import interface
from monarch.rdma.backends.ibverbs.send_queue import WorkRequest
from tests._devices.nowhere import NOWHERE
from tests.rdma.ibverbs_fake import move

gpus = True  # whether UCX was built for them


class nixl_thread_sync_t:
    NIXL_THREAD_SYNC_STRICT = 1


class nixl_agent_config:
    def __init__(self, backends: list[str], sync_mode: int) -> None:
        assert backends == ["UCX"] and sync_mode == nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT


class Refused(Exception):
    pass


class Descriptors:
    def __init__(self, kind: str, pieces: list[tuple[int, int, int]]) -> None:
        self.kind = kind
        self.pieces = pieces

    def within(self, regions: list[Any]) -> bool:
        ((address, size, device),) = self.pieces
        return any(
            kind == self.kind and number == device and start <= address and address + size <= start + length
            for kind, start, length, number in regions
        )

    def place(self) -> tuple[int, int]:
        """Returns where the host has what stands for it."""
        ((address, size, _),) = self.pieces
        return address - NOWHERE if self.kind == "VRAM" else address, size


class Transfer:
    def __init__(self, agent: nixl_agent, write: bool, local: Descriptors, remote: Descriptors, name: str) -> None:
        self.agent, self.write, self.local, self.remote, self.name = agent, write, local, remote, name
        self.released = False

    def release(self) -> None:
        assert not self.released
        self.released = True

    def do(self) -> None:
        (here, size), (there, _) = self.local.place(), self.remote.place()
        assert move(self.agent.remote[self.name]["pid"], WorkRequest(here, there, size), self.write)


class nixl_agent:
    def __init__(self, name: str, config: nixl_agent_config) -> None:
        self.name = name
        self.regions: list[tuple[str, int, int, int]] = []
        self.remote: dict[str, Any] = {}
        self.done: list[Transfer] = []
        self._unseen: list[Transfer] = []  # writes to a GPU behind which nothing was read

    def register_memory(self, pieces: list[tuple[int, int, int, str]], kind: str) -> Descriptors:
        ((address, size, device, _),) = pieces
        if kind == "VRAM":
            if not gpus:
                raise Refused("NIXL_ERR_BACKEND")
            card: Any = interface()
            assert address >= NOWHERE and card._current() == f"cuda:{device}", "this thread does not use that GPU"
        else:
            assert kind == "DRAM" and device == 0 and address < NOWHERE
        self.regions.append((kind, address, size, device))
        return Descriptors(kind, [(address, size, device)])

    def deregister_memory(self, descriptors: Descriptors) -> None:
        ((address, size, device),) = descriptors.pieces
        self.regions.remove((descriptors.kind, address, size, device))

    def get_partial_agent_metadata(self, descriptors: Descriptors, inc_conn_info: bool, backends: list[str]) -> bytes:
        assert inc_conn_info and backends == ["UCX"]
        regions = [(descriptors.kind, *piece) for piece in descriptors.pieces]
        return json.dumps({"name": self.name, "pid": os.getpid(), "regions": regions}).encode()

    def add_remote_agent(self, shown: bytes) -> bytes:
        told = json.loads(shown)
        known = self.remote.setdefault(told["name"], {"pid": told["pid"], "regions": []})
        known["regions"] += told["regions"]
        return str(told["name"]).encode()

    def remove_remote_agent(self, name: str) -> None:
        del self.remote[name]

    def get_xfer_descs(self, pieces: list[tuple[int, int, int]], kind: str) -> Descriptors:
        return Descriptors(kind, pieces)

    def initialize_xfer(self, operation: str, local: Descriptors, remote: Descriptors, name: str) -> Transfer:
        if not local.within(self.regions) or not remote.within(self.remote[name]["regions"]):
            raise Refused("NIXL_ERR_NOT_FOUND")
        return Transfer(self, operation == "WRITE", local, remote, name)

    def transfer(self, transfer: Transfer) -> str:
        self.done.append(transfer)
        if transfer.write and transfer.remote.kind == "VRAM":
            self._unseen.append(transfer)
        else:
            for before in self._unseen:
                before.do()
            self._unseen.clear()
            transfer.do()
        return "PROC"

    def check_xfer_state(self, transfer: Transfer) -> str:
        return "DONE"
