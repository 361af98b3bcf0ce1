"""Large payloads between processes of one host travel in shared memory, and nobody can tell but by the speed."""

from __future__ import annotations

import gc
import os
import signal
from typing import Any

import pytest

from monarch._runtime.context import home
from monarch._runtime.proc import Proc
from monarch.actor import ProcMesh, SupervisionError, endpoint
from tests.support.patience import TIMEOUT
from tests.support.process_actors import Pid
from tests.support.tiers import first_of, full

np = pytest.importorskip("numpy")

pytestmark = pytest.mark.procs
MIB = 1 << 20


def here() -> Proc:
    proc = home()
    assert proc is not None
    return proc


def numbers() -> dict[str, int]:
    """This process's segments and those of others, when everything that has died is gone."""
    gc.collect()
    _turn_of(here())
    payloads: dict[str, int] = here().statistics()["payloads"]
    return payloads


def busy(store: Any) -> int:
    """The segments that receivers need, once that actor has let go of what it was sent before."""
    get(store.pid.call())
    return numbers()["busy"]


def borrowed(store: Any) -> int:
    """The segments of others that the actor's process needs: other actors may live there."""
    return int(get(store.numbers.call_one())["borrowed"])


def _turn_of(proc: Proc) -> None:
    """Waits until the I/O thread has done what it had to do."""
    import threading

    done = threading.Event()
    proc.loop.call_soon(done.set)
    assert done.wait(TIMEOUT)


class Store(Pid):
    def __init__(self) -> None:
        self.kept: list[Any] = []

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def keep(self, value: Any) -> int:
        self.kept.append(value)
        return len(self.kept)

    @endpoint
    def take(self) -> list[Any]:
        kept, self.kept = self.kept, []
        return kept

    @endpoint
    def drop(self) -> None:
        self.kept.clear()

    @endpoint
    def fill(self, value: Any, number: int) -> list[int]:
        """Writes into what it got, keeps it, and says what is in it then."""
        value[:] = number
        self.kept.append(value)
        return [int(value[0]), int(value[-1])]

    @endpoint
    def sums(self) -> list[int]:
        return [int(value.sum()) for value in self.kept]

    @endpoint
    def total(self, value: Any) -> int:
        return int(np.asarray(value).sum())

    @endpoint
    def numbers(self) -> dict[str, int]:
        return numbers()

    @endpoint
    def files(self) -> int:
        return len(os.listdir("/proc/self/fd"))

    @endpoint
    def die_after(self, value: Any, to: Any) -> None:
        """Sends a large message on, and is gone before anybody can have asked it for anything."""
        to.keep.broadcast(value)
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def order(self, to: Any, count: int) -> None:
        for number in range(count):
            to.keep.broadcast(np.full(MIB if number % 2 else 10, number % 256, dtype=np.uint8))


@pytest.fixture
def store(proc: ProcMesh) -> Any:
    return proc.spawn("store", Store)


@pytest.fixture
def stores(procs4: ProcMesh) -> Any:
    return procs4.spawn("stores", Store)


def ones(size: int) -> Any:
    return np.ones(size, dtype=np.uint8)


def get(future: Any) -> Any:
    return future.get(timeout=TIMEOUT)


def test_a_large_array_arrives_in_shared_memory_and_its_memory_comes_back(store: Any) -> None:
    array, free, held = np.arange(MIB, dtype=np.uint8), busy(store), borrowed(store)
    assert get(store.keep.call_one(array)) == 1
    assert borrowed(store) == held + 1 and numbers()["busy"] == free + 1
    back = get(store.take.call_one())
    assert (back[0] == array).all() and back[0].flags.writeable
    del back
    assert borrowed(store) == held
    assert busy(store) == free


def test_small_ones_do_not(store: Any) -> None:
    before, held = numbers(), borrowed(store)
    get(store.keep.call_one(ones(32 * 1024)))
    assert borrowed(store) == held
    assert numbers() == before


@pytest.mark.parametrize("kind", first_of([bytes, bytearray]))
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"nested": [v, 1]}], ids=["plain", "nested"])
def test_bytes(store: Any, kind: Any, wrap: Any) -> None:
    value, free = wrap(kind(os.urandom(3 * MIB))), busy(store)
    assert get(store.echo.call_one(value)) == value
    assert busy(store) == free


def test_arrays_keep_their_meaning(store: Any) -> None:
    frozen = np.ones(MIB)
    frozen.setflags(write=False)
    big = np.arange(MIB, dtype=np.int64).reshape(1024, 1024)
    values = [
        frozen,
        big,
        big.T,
        big[::2, 1:],
        np.empty((0, 5)),
        np.array(["a" * 100] * 5000),
        big.astype(complex),
        big > 7,
    ]
    for value, back in zip(values, get(store.echo.call_one(values)), strict=True):
        assert (back == value).all() and back.dtype == value.dtype and back.shape == value.shape
        assert back.flags.writeable == value.flags.writeable


def test_tensors_keep_their_meaning(store: Any) -> None:
    torch = pytest.importorskip("torch")
    base = torch.arange(2 * MIB, dtype=torch.float32)
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.float16, torch.int64):
        value = base[:MIB].to(dtype)
        back = get(store.echo.call_one(value))
        assert back.dtype is dtype and torch.equal(back.view(torch.uint8), value.view(torch.uint8))
    weight = torch.ones(MIB, requires_grad=True)
    assert get(store.echo.call_one(weight)).requires_grad
    part, whole = base[:100_000], base[50_000:150_000]
    a, b = get(store.echo.call_one((base[:200_000][:100_000], base[:200_000].t()[50_000:])))
    assert a.shape == part.shape and b.shape[0] == 150_000 and whole.shape[0] == 100_000
    shared = torch.zeros(200_000)
    a, b = get(store.echo.call_one((shared[:150_000], shared[100_000:])))
    a[120_000] = 5
    assert b[20_000] == 5
    empty, transposed = get(store.echo.call_one((torch.empty(0), base.view(1024, 2048).T)))
    assert empty.numel() == 0 and torch.equal(transposed, base.view(1024, 2048).T)


def test_one_copy_serves_every_receiver(stores: Any) -> None:
    def borrowed_everywhere() -> list[int]:
        return [n["borrowed"] for n in get(stores.numbers.call()).values()]

    get(stores.total.call(ones(10)))
    before, held = numbers(), borrowed_everywhere()
    get(stores.keep.call(ones(8 * MIB)))
    after = numbers()
    assert after["busy"] == before["busy"] + 1
    assert borrowed_everywhere() == [count + 1 for count in held]
    get(stores.drop.call())
    assert borrowed_everywhere() == held
    assert numbers()["busy"] == before["busy"]


def test_receivers_of_one_payload_write_without_others_seeing_it(stores: Any) -> None:
    array = ones(MIB)
    get(stores.keep.call(array))  # all have it, and keep it
    futures = [stores.flatten("i").slice(i=rank).fill.call_one(array, rank + 2) for rank in range(4)]
    assert [get(future) for future in futures] == [[rank + 2] * 2 for rank in range(4)]
    shared = get(stores.fill.call(array, 9))
    assert list(shared.values()) == [[9, 9]] * 4
    for rank, sums in enumerate(get(stores.sums.call()).values()):
        assert sums == [MIB, (rank + 2) * MIB, 9 * MIB]
    assert array.sum() == MIB
    get(stores.drop.call())
    assert list(get(stores.total.call(array)).values()) == [MIB] * 4  # and not what they wrote there


def test_what_the_sender_writes_afterwards_is_not_seen(store: Any, proc: ProcMesh) -> None:
    array = ones(MIB)
    future = store.keep.call_one(array)
    array[:] = 7
    get(future)
    assert get(store.sums.call_one()) == [MIB]


def test_small_messages_after_large_ones_arrive_after_them(procs2: ProcMesh) -> None:
    first, second = (procs2.slice(gpus=rank).spawn(f"store{rank}", Store) for rank in range(2))
    get(first.order.call_one(second, 100))
    get(second.pid.call_one())
    found = get(second.take.call_one())
    while len(found) < 100:
        found += get(second.take.call_one())
    assert [int(value[0]) for value in found] == list(range(100))


@full
def test_memory_stays_flat(store: Any) -> None:
    sizes = [256 * 1024, 600 * 1024, MIB]
    for size in sizes:
        get(store.echo.call_one(ones(size)))
    for _ in range(5):  # whoever is a little late needs a second segment of a size
        futures = [store.echo.call_one(ones(size)) for size in sizes]
        for future in futures:
            get(future)
        del futures, future
    files, before, free = get(store.files.call_one()), get(store.numbers.call_one()), busy(store)
    segments = numbers()["segments"]
    for number in range(10_000):
        assert len(get(store.echo.call_one(ones(sizes[number % 3])))) == sizes[number % 3]
    there = get(store.numbers.call_one())
    after = numbers()
    assert after["busy"] == free and after["segments"] <= segments + 6
    assert (there["busy"], there["borrowed"]) == (before["busy"], before["borrowed"])
    assert there["segments"] <= before["segments"] + 6
    assert get(store.files.call_one()) <= files + 6


PROGRAM = """
import gc, os, sys
import numpy as np
from monarch.actor import Actor, endpoint, this_host
from monarch._runtime.context import home

class Store(Actor):
    def __init__(self):
        self.kept = []
    @endpoint
    def keep(self, value):
        self.kept.append(value)
        return len(self.kept)
    @endpoint
    def check(self):
        return [int(v[0]) == int(v[-1]) == i for i, v in enumerate(self.kept)]
    @endpoint
    def drop(self):
        self.kept.clear()
    @endpoint
    def borrowed(self):
        gc.collect()
        return home().statistics()["payloads"]["borrowed"]

def main():
    procs = this_host().spawn_procs({"p": 2})
    stores = procs.spawn("stores", Store)
    first = stores.slice(p=0)
    first.borrowed.call_one().get()
    BODY
    procs.stop().get()

main()
"""


def program(body: str) -> str:
    return PROGRAM.replace("BODY", body.replace("\n", "\n    "))


@full
def test_a_receiver_that_keeps_everything_fills_the_pool_and_nothing_else(scripts: Any) -> None:
    source = program("""
for i in range(20):
    first.keep.call_one(np.full(1 << 20, i, dtype=np.uint8)).get()
found = home().statistics()["payloads"]
assert found["segments"] == found["busy"] == 4 and found["bytes"] == 4 << 20, found
assert first.borrowed.call_one().get() == 4
assert first.check.call_one().get() == [True] * 20
stores.keep.call(np.full(1 << 20, 20, dtype=np.uint8)).get()
assert all(first.check.call_one().get())
first.drop.call_one().get()
first.keep.call_one(np.zeros(1 << 20, dtype=np.uint8)).get()
assert first.borrowed.call_one().get() == 1
first.keep.call_one(np.full(5 << 20, 1, dtype=np.uint8)).get()
assert first.borrowed.call_one().get() == 1
assert first.check.call_one().get() == [True] * 2
print("OK")""")
    assert scripts.run(source, env={"MONARCH_SEGMENT_BYTES": str(4 * MIB)}).stdout == "OK\n"


@full
@pytest.mark.parametrize("setting", ["MONARCH_SEGMENT_FROM", "MONARCH_SEGMENT_BYTES"])
def test_without_segments_everything_goes_through_sockets(scripts: Any, setting: str) -> None:
    source = program("""
assert list(stores.keep.call(np.full(1 << 20, 0, dtype=np.uint8)).get().values()) == [1, 1]
assert first.check.call_one().get() == [True]
assert first.borrowed.call_one().get() == 0 and home().statistics()["payloads"]["segments"] == 0
print("OK")""")
    assert scripts.run(source, env={setting: "0"}).stdout == "OK\n"


@full
def test_the_number_of_segments_is_bounded_by_descriptors(scripts: Any) -> None:
    source = program("""
for i in range(30):
    first.keep.call_one(np.full(1 << 18, i, dtype=np.uint8)).get()
found = home().statistics()["payloads"]
assert found["segments"] == 16, found
assert all(first.check.call_one().get())
print("OK")""")
    limited = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))\n"
    assert scripts.run(limited + source).stdout == "OK\n"


@full
def test_no_memory_to_share_is_no_error(scripts: Any) -> None:
    source = program("""
os.memfd_create = lambda *args: os.open("/nowhere", 0)
stores.keep.call(np.full(1 << 20, 0, dtype=np.uint8)).get()
assert first.check.call_one().get() == [True]
assert home().statistics()["payloads"]["segments"] == home().statistics()["payloads"]["bytes"] == 0
print("OK")""")
    assert scripts.run(source).stdout == "OK\n"


def test_an_array_outlives_its_sender(spawn_procs: Any, faults: Any) -> None:
    procs = spawn_procs(per_host={"p": 2})
    sender, receiver = (procs.slice(p=rank).spawn(f"store{rank}", Store) for rank in range(2))
    array = get(sender.echo.call_one(ones(4 * MIB)))
    get(receiver.pid.call_one())
    os.kill(get(sender.pid.call_one()), signal.SIGKILL)
    faults.next()
    assert array.sum() == 4 * MIB
    array[:] = 2
    assert array.sum() == 8 * MIB
    del array
    assert numbers()["borrowed"] == 0


@full
def test_what_a_process_sent_before_it_was_killed_arrives(spawn_procs: Any, faults: Any) -> None:
    procs = spawn_procs(per_host={"p": 2})
    sender, receiver = (procs.slice(p=rank).spawn(f"store{rank}", Store) for rank in range(2))
    get(sender.total.call_one(ones(10)))
    get(receiver.total.call_one(ones(10)))
    sender.die_after.broadcast(ones(4 * MIB), receiver)
    faults.next()
    found: list[Any] = []
    for _ in range(10_000):
        found += get(receiver.take.call_one())
        if found:
            break
    assert found[0].sum() == 4 * MIB
    assert get(receiver.numbers.call_one())["borrowed"] == 0


def test_a_receiver_that_dies_releases_what_it_had(spawn_procs: Any, faults: Any) -> None:
    procs = spawn_procs(per_host={"p": 2})
    store = procs.spawn("store", Store)
    before = busy(store)
    get(store.keep.call(ones(4 * MIB)))
    get(store.slice(p=0).keep.call_one(ones(4 * MIB)))
    assert numbers()["busy"] == before + 2
    pid = get(store.slice(p=0).pid.call_one())
    waiting = [store.slice(p=0).keep.call_one(ones(4 * MIB)) for _ in range(5)]
    os.kill(pid, signal.SIGKILL)
    for future in waiting:
        try:
            get(future)
        except SupervisionError:
            pass
    faults.next(handled=None)
    assert numbers()["busy"] == before + 1
    get(store.slice(p=1).drop.call_one())
    assert get(store.slice(p=1).numbers.call_one())["borrowed"] == 0
    assert numbers()["busy"] == before
