"""Memory of devices as bytes: the few things that are asked of torch, behind one small interface that tests replace.

A device's memory is a flat uint8 tensor here, which keeps its storage alive. Nothing outside knows streams, events or
what IPC is made of.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, NamedTuple, Protocol

from monarch._devices import own_device, vendors
from monarch._devices.modes import locally
from monarch._linux import private_files


class Card(NamedTuple):
    """A card, as every process of its machine names it; the uuid is "" where torch does not tell."""

    type: str
    uuid: str


Wait = Callable[[], None]


class Interface(Protocol):
    """The operations on device memory. Any thread."""

    def flat(self, tensor: Any) -> Any:
        """The bytes of a contiguous tensor, not copied."""

    def whole(self, storage: Any) -> Any:
        """The bytes of a storage, not copied."""

    def card(self, flat: Any) -> Card:
        """Returns where the bytes are."""

    def find(self, card: Card) -> str:
        """Returns what this process calls the card ("cuda:1"); "" when it does not see it, or cannot tell."""

    def current(self, kind: str) -> str:
        """The device of that type that this thread uses; "" when the process has none."""

    def on(self, device: str) -> AbstractContextManager[None]:
        """Makes that device this thread's for a `with` block. Whatever is freed in it is freed there: a thread that
        has none would make itself one, on the first card, which costs that card hundreds of MiB."""

    def empty(self, size: int, device: str) -> Any:
        """Bytes of a device, as they come."""

    def pinned(self, size: int) -> Any:
        """Bytes of the host that devices copy to and from by themselves. Raises where there are none."""

    def mark(self, flat: Any) -> Any:
        """Returns what this thread has given the device to do so far. A copy can be told to come after it."""

    def reach(self, mark: Any) -> None:
        """Waits until the device has done what was marked."""

    def settle(self, flat: Any) -> None:
        """Waits until the device has done what this thread gave it to do."""

    def begin(self, target: Any, source: Any, after: Any = None) -> Wait:
        """Begins a copy between two flat tensors of one size, at least one of them on a device. Call the result before
        either is used again: it waits for the copy.
        """

    def begin_all(self, copies: Sequence[tuple[Any, Any]], after: Sequence[Any] = ()) -> Wait:
        """Begins copies of (target, source), in this order, each of one shape and dtype and with at least one end on a
        device. They come after all of the marks. Call the result as that of `begin`; it waits for all.
        """

    def scratch(self, size: int, device: str) -> Any:
        """Bytes of a device for copies that this thread begins, and for nothing else."""

    def drain(self, device: str) -> None:
        """Waits until the device has done everything that this process gave it to do, on whichever stream."""

    def ipc_obstacle(self, flat: Any) -> str:
        """Returns why no other process can be given these bytes; "" when one can."""

    def share(self, flat: Any) -> tuple[Any, ...]:
        """Returns what another process of the machine opens the storage with: exactly one, exactly once. The memory is
        not reused before it has released it."""

    def open(self, shared: tuple[Any, ...], device: str) -> Any:
        """The whole storage that another process shared, as `device`, which is what this process calls that card. When it
        raises, nothing is open, and the other process has its memory back.
        """

    def lent(self, shared: tuple[Any, ...]) -> bool:
        """Returns whether memory that was shared is still to be released, by the process it was shared with."""

    def release(self, shared: tuple[Any, ...]) -> None:
        """Lets go of shared memory in the name of a process that never opened it, or that has ended. Harmless when it is
        not lent any more.
        """

    def forget(self, shared: tuple[Any, ...]) -> None:
        """Removes what a process that shared, and has ended, left on the machine. What is open stays so."""

    def collect(self) -> None:
        """Takes back memory that this process shared and freed, and that all others have released since."""


class Torch:
    """The real one: CUDA, HIP under the name of cuda, XPU; and devices without streams, where every copy is waited for."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._cards: dict[Any, Card] = {}

    @locally
    def flat(self, tensor: Any) -> Any:
        import torch

        start = tensor.storage_offset() * tensor.element_size()
        size = (tensor.numel() * tensor.element_size(),)
        empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        return empty.set_(tensor.untyped_storage(), start, size)

    @locally
    def whole(self, storage: Any) -> Any:
        import torch

        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)

    def card(self, flat: Any) -> Card:
        import torch

        return self._card(torch, flat.device)

    def _card(self, torch: Any, device: Any) -> Card:
        known = self._cards.get(device)
        if known is None:
            known = self._cards[device] = Card(device.type, vendors.identity(torch, device))
        return known

    def find(self, card: Card) -> str:
        import torch

        module = getattr(torch, card.type, None)
        if module is None or not card.uuid or not module.is_available():
            return ""
        for index in range(module.device_count()):
            device = torch.device(card.type, index)
            if self._card(torch, device) == card:
                return str(device)
        return ""

    def current(self, kind: str) -> str:
        import torch

        module = getattr(torch, kind, None)
        if module is None or not module.is_available():
            return ""
        own_device.enter()
        return f"{kind}:{module.current_device() if hasattr(module, 'current_device') else 0}"

    def on(self, device: str) -> AbstractContextManager[None]:
        import torch

        place = torch.device(device)
        module = getattr(torch, place.type, None)
        # Leaving it goes back to the device before without making a context there (`_maybe_exchange_device`).
        return module.device(place) if hasattr(module, "device") else nullcontext()  # type: ignore[union-attr]

    @locally
    def empty(self, size: int, device: str) -> Any:
        import torch

        return torch.empty(size, dtype=torch.uint8, device=device)

    @locally
    def pinned(self, size: int) -> Any:
        import torch

        own_device.enter()  # torch pins for the device that this thread uses
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def mark(self, flat: Any) -> Any:
        import torch

        module = getattr(torch, flat.device.type)
        return module.current_stream(flat.device).record_event() if hasattr(module, "current_stream") else None

    def reach(self, mark: Any) -> None:
        if mark is not None:
            mark.synchronize()

    def settle(self, flat: Any) -> None:
        import torch

        module = getattr(torch, flat.device.type)
        if hasattr(module, "current_stream"):
            module.current_stream(flat.device).synchronize()

    def begin(self, target: Any, source: Any, after: Any = None) -> Wait:
        return self.begin_all(((target, source),), () if after is None else (after,))

    @locally
    def begin_all(self, copies: Sequence[tuple[Any, Any]], after: Sequence[Any] = ()) -> Wait:
        import torch

        devices = dict.fromkeys(one.device for pair in copies for one in reversed(pair) if one.device.type != "cpu")
        if not all(hasattr(getattr(torch, device.type), "current_stream") for device in devices):
            for target, source in copies:
                target.copy_(source)
            return lambda: None
        streams = {device: self._stream(torch, device) for device in devices}
        with ExitStack() as stack:
            for device, stream in streams.items():
                # The device first: leaving a stream goes back to the stream before on the device before, by a
                # cudaSetDevice, which from CUDA 12 on makes a context there.
                stack.enter_context(self.on(str(device)))
                stack.enter_context(getattr(torch, device.type).stream(stream))
                for mark in after:
                    stream.wait_event(mark)
            try:
                for target, source in copies:
                    target.copy_(source, non_blocking=True)
            except BaseException:
                for stream in streams.values():  # those before it still move, and nobody would wait for them
                    stream.synchronize()
                raise
        done = [stream.record_event() for stream in streams.values()]

        def wait() -> None:
            for event in done:
                event.synchronize()

        return wait

    @locally
    def scratch(self, size: int, device: str) -> Any:
        import torch

        place = torch.device(device)
        module = getattr(torch, place.type)
        if not hasattr(module, "current_stream"):
            return torch.empty(size, dtype=torch.uint8, device=place)
        # The allocator gives it to others of this stream only, which come after what is done with it here.
        with self.on(device), module.stream(self._stream(torch, place)):
            return torch.empty(size, dtype=torch.uint8, device=place)

    def drain(self, device: str) -> None:
        import torch

        place = torch.device(device)
        module = getattr(torch, place.type)
        if hasattr(module, "synchronize"):
            module.synchronize(place)

    def _stream(self, torch: Any, device: Any) -> Any:
        """This thread's: a copy waits for nothing that the program's own streams do, but for what it is told to."""
        streams: dict[Any, Any] = self._local.__dict__.setdefault("streams", {})
        stream = streams.get(device)
        if stream is None:
            stream = streams[device] = getattr(torch, device.type).Stream(device)
        return stream

    def ipc_obstacle(self, flat: Any) -> str:
        import torch

        return vendors.ipc_obstacle(torch, flat.device)

    def share(self, flat: Any) -> tuple[Any, ...]:
        # As torch.multiprocessing does it: the first field is the device as this process numbers it.
        return tuple(flat.untyped_storage()._share_cuda_()[1:])

    def open(self, shared: tuple[Any, ...], device: str) -> Any:
        import torch

        torch.cuda._lazy_init()
        index = torch.device(device).index
        try:
            with self.on(device):
                return self.whole(torch.UntypedStorage._new_shared_cuda(index, *shared))
        except Exception:
            self.release(shared)
            raise

    def lent(self, shared: tuple[Any, ...]) -> bool:
        # _share_cuda_: handle, size, offset, the counts' file, the count's number, event, whether to wait for that.
        return ipc_count(*shared[3:5]) > 0

    def release(self, shared: tuple[Any, ...]) -> None:
        import torch

        if self.lent(shared):
            torch.UntypedStorage._release_ipc_counter_cuda(*shared[3:5])

    def forget(self, shared: tuple[Any, ...]) -> None:
        remove_ipc_counts(shared[3])

    def collect(self) -> None:
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.ipc_collect()


_interface: Interface = Torch()


def interface() -> Interface:
    """Returns what this process uses."""
    return _interface


def replace(other: Interface) -> Interface:
    """Sets, for tests, `other` from here on. Returns what was there before."""
    global _interface
    before, _interface = _interface, other
    return before


# The counts by which torch knows whether memory that a process shares by CUDA IPC is still open in another.
#
# Each `_share_cuda_` sets a count of its own to 1, in a file of the process that shares: /dev/shm/torch_<pid>_... A process
# that opens the memory takes 1 off when it closes it; then torch lets the memory be used again (torch/multiprocessing/
# cuda_multiprocessing.md). One that is killed first takes nothing off, and torch does not notice: the memory would be kept to
# the end of its process. So a count is looked at here before it is taken off in the name of the dead: torch reads a count
# below 0 as a huge one and keeps the memory for good.
_SHM = "/dev/shm"
_COUNT = struct.Struct("=q")
_COUNTS_FROM = (
    64  # bytes before the counts: at::RefcountedMapAllocator's own (map_alloc_alignment, ATen/MapAllocator.h)
)
_COUNTS = 10000  # in a file (CUDA_IPC_REF_COUNTER_FILE_SIZE, torch/csrc/CudaIPCTypes.h)


def remove_ipc_counts(file: bytes, folder: str = _SHM) -> None:
    """Removes the file of a process that has ended: nobody reads its counts any more. It goes by its whole name, which has
    a random part: other containers may share the folder and number their processes alike.
    """
    name = os.fsdecode(file).removeprefix("/")
    if name.startswith("torch_") and "/" not in name:
        try:
            os.unlink(os.path.join(folder, name))
        except OSError:  # it is gone, or another user's
            pass


def ipc_count(file: bytes, number: int, folder: str = _SHM) -> int:
    """Returns the count with that number in the file of that name, as `_share_cuda_` gives both.

    0 where the file is gone: torch takes it away with its last count. -1 where it does not look as torch's do today.
    """
    name = os.fsdecode(file).removeprefix("/")
    if not name.startswith("torch_") or "/" in name or not 0 <= number < _COUNTS:
        return -1
    try:
        with open(private_files.open_to_read(os.path.join(folder, name), root=False), "rb") as counts:
            if os.fstat(counts.fileno()).st_size != _COUNTS_FROM + _COUNTS * _COUNT.size:
                return -1
            read = os.pread(counts.fileno(), _COUNT.size, _COUNTS_FROM + number * _COUNT.size)
            return int(_COUNT.unpack(read)[0])
    except FileNotFoundError:
        return 0
    except (OSError, struct.error):
        return -1
