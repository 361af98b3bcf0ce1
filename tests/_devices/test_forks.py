"""A process with a device that forks: its child ends as if there were none."""

from __future__ import annotations

from tests.support.scripts import Scripts
from tests.support.tiers import full

FORKS = """
    import gc, os, sys, weakref

    import torch

    from monarch._devices import memory, pinned
    from monarch.rdma import lending
    from monarch.rdma.local_memory import memory_of
    from monarch.rdma.registry import registry
    from tests._devices.fake import FakeCard

    def freed(what):
        os.write(1, f"{what} was freed in {'the child' if os.getpid() != parent else 'the parent'}\\n".encode())

    torch.set_num_threads(1)  # a forked child has none of the threads that share large fills
    parent, card = os.getpid(), FakeCard()
    memory.replace(card)

    def prepare():
        there, here = card.tensor(bytes(100)), torch.zeros(100, dtype=torch.uint8)
        pinned.to_host(there, here.data_ptr())
        weakref.finalize(pinned._pool._free[0], freed, "pinned memory").atexit = False
        mine = memory_of(there)
        place, let_go = lending.lending.place(mine)
        registry().register(mine, let_go)
        weakref.finalize(mine.keep, freed, "a registered tensor").atexit = False
        with lending.borrowing.asking(registry().owner, 7):
            shared = lending.lending.give(mine, "nobody", registry().owner)
            borrowed = lending.borrowing.open(registry().owner, 7, shared, "cuda:0")
        weakref.finalize(borrowed.bytes, freed, "borrowed memory").atexit = False

    prepare()
    child = os.fork()
    gc.collect()
    if not child:
        assert len(lending.borrowing) == len(registry()) == lending.lending.given() == 0
        pinned.Piece().close()
        print("the child ends", flush=True)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    assert card.open_storages == 1
    card.close()
    print("the parent ends", flush=True)
    os._exit(0)
"""

LAYOUT = """
    import struct

    import torch

    from monarch._devices.memory import ipc_count

    storage = torch.zeros(10000, dtype=torch.int64).untyped_storage()
    _, name, _ = storage._share_filename_cpu_()
    counts = torch.empty(0, dtype=torch.int64).set_(storage)
    counts[7] = 3
    assert [ipc_count(name, number) for number in (6, 7, 8)] == [0, 3, 0]
"""


@full
def test_a_forked_child_frees_nothing_of_its_parents(scripts: Scripts) -> None:
    ran = scripts.run(FORKS)
    assert ran.stdout.splitlines() == ["the child ends", "the parent ends"]
    assert ran.stderr == ""


@full
def test_torch_keeps_counts_as_we_read_them(scripts: Scripts) -> None:
    """By the allocator that those of CUDA IPC have as well: torch without CUDA makes no others."""
    scripts.run(LAYOUT)
