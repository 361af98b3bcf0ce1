"""SPMDActor: a rank of torch.distributed that a program steers by hand."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

from monarch.actor import Actor, context, current_rank, endpoint
from monarch.spmd import layout
from monarch.spmd.addresses import ip_address
from monarch.spmd.group_guard import Membership, guard, members_of, stores_at
from monarch.spmd.main_program import run_main


class SPMDActor(Actor):
    """One rank of a program that runs alike on all of them. Ranks that differ in the last dimension of the mesh only
    are those of one host, as in `setup_torch_elastic_env`.

        ranks = hosts.spawn_procs({"gpus": 8}).spawn("ranks", SPMDActor)
        host, port = ranks.slice(hosts=0, gpus=0).get_host_port.call_one(None).get()
        ranks.main.call(host, port, ["train.py", "--epochs", "3"]).get()
    """

    def __init__(self) -> None:
        point = current_rank()
        sizes = list(point.extent.sizes)
        self.rank = point.rank
        places = layout.by_last_dimension(sizes)
        self.local_rank, self.local_world_size, self.group_rank, self.group_world_size = places[self.rank]
        self.world_size = len(places)
        self._environment = layout.environments(places)[self.rank]
        self._members = members_of(context().actor_instance.proc_mesh)

    @endpoint
    def get_host_port(self, use_ipaddr: Any = None) -> tuple[str, int]:
        """This host's name and a TCP port that is free there now; with `use_ipaddr` (an AddrType or an address
        family) one of its addresses in place of the name."""
        return host_and_port(0 if use_ipaddr is None else family_of(use_ipaddr))

    @endpoint
    def setup_env(self, master_addr: str, master_port: int) -> None:
        """Sets the variables that torchrun sets, for this rank, those of TORCHELASTIC_ among them. From then on torch
        groups of this process end when the process of another rank dies."""
        self._set_environment(master_addr, master_port)

    def _set_environment(self, master_addr: str, master_port: int) -> None:
        os.environ.update(self._environment)
        os.environ.update(layout.ELASTIC)
        os.environ.update({"MASTER_ADDR": str(master_addr), "MASTER_PORT": str(master_port)})
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
        guard.enter(Membership(self.rank, self._members), stores_at(str(master_addr), int(master_port)))

    @endpoint
    def main(self, master_addr: str, master_port: int, script_args: Sequence[str]) -> bool:
        """`setup_env`, then runs `["train.py", ...]` or `["-m", "module", ...]` as `__main__` in this process. True when it
        has ended well; RuntimeError with the status for sys.exit with another than 0; what it raises otherwise. ValueError
        without a program."""
        self._set_environment(master_addr, master_port)
        try:
            run_main(list(script_args))
        except SystemExit as exc:
            if exc.code not in (None, 0):
                raise RuntimeError(f"{script_args[0]} has ended with status {exc.code} on rank {self.rank}") from None
        return True


def family_of(use_ipaddr: Any) -> int:
    """Returns what `host_and_port` takes, from an AddrType or an address family."""
    return int(getattr(use_ipaddr, "value", use_ipaddr) or -1)


def host_and_port(family: int) -> tuple[str, int]:
    """This host and a free port. `family`: 0 for its name, -1 for an address of any family, else one of that."""
    host = socket.gethostname()
    if family:
        host = ip_address(host, None, max(family, 0))
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.bind(("", 0))
        return host, int(sock.getsockname()[1])
