"""The buffer is another process's on this host, in memory of a card that this process sees as well: by torch's CUDA IPC
(the same names under HIP) its storage is opened here once, then the card copies by itself.

The first transfer asks the owner's Manager for the storage (see `lending`); after that the owner takes no part. Every
chunk is copied under the buffer's lock, and waited for before that is left, so a drop waits for it. Local memory may be on
the same card, on another one, or the host's.

A process that was started with a visible-devices variable that hides the owner's card cannot open its memory: let processes
see all cards of the machine, and choose theirs with torch.cuda.set_device.

Never run on hardware.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from monarch._devices.memory import Card, interface
from monarch._errors import BufferDroppedError, RDMAError
from monarch.actor import bind_context
from monarch.rdma import device_copies, manager
from monarch.rdma.backends import actor
from monarch.rdma.backends.process_vm import peer, reachable
from monarch.rdma.handle import Handle, Owner
from monarch.rdma.lending import Borrowed, borrowing
from monarch.rdma.memory import Memory
from monarch.rdma.transfer import Transfer

if TYPE_CHECKING:
    import asyncio

REFUSED = 1024  # owners and cards of which it is known that it does not work; with one more all are tried again


class DeviceIpc:
    """Copies between processes by the card. `elsewhere` begins a transfer that cannot be done this way after all."""

    name = "device_ipc"
    far = False

    def __init__(self, elsewhere: Callable[[Transfer], None]) -> None:
        self._elsewhere = elsewhere
        self._refused: dict[tuple[Owner, Card], str] = {}
        self._asking: dict[tuple[Owner, int], asyncio.Task[Borrowed]] = {}  # on the Mover's loop only

    def obstacle(self, handle: Handle) -> str:
        if handle.device is None:
            return "it is not memory of a device"
        refused = self._refused.get((handle.owner, handle.device.card), "")
        return reachable(handle) or refused or _unseen(handle.device.card)

    def start(self, transfer: Transfer) -> None:
        """Where the storage cannot be opened, this transfer and those to come go another way."""
        place = transfer.handle.device
        assert place is not None
        borrowed = transfer.kept.get(self.name) or borrowing.find(transfer.handle.owner, place.storage)
        if transfer.late():
            transfer.finish(transfer.timed_out())
        elif borrowed is not None:
            self._copy(transfer, borrowed)
        else:
            elsewhere = bind_context(partial(self._elsewhere, transfer))
            manager.start(lambda: self._open(transfer, elsewhere))

    def _copy(self, transfer: Transfer, borrowed: Borrowed) -> None:
        transfer.kept[self.name] = borrowed
        device_copies.run(transfer, lambda: _lend(transfer, borrowed))

    async def _open(self, transfer: Transfer, elsewhere: Callable[[], None]) -> None:
        try:
            borrowed = await self.borrow(transfer.handle, transfer.left())
        except TimeoutError:
            transfer.finish(transfer.timed_out())
        except RDMAError as exc:
            transfer.finish(exc)
        except Exception:
            elsewhere()
        except BaseException as exc:  # this process is ending
            transfer.finish(exc)
            raise
        else:
            self._copy(transfer, borrowed)

    async def borrow(self, handle: Handle, seconds: float) -> Borrowed:
        """The buffer's storage, open here; on the Mover's loop. TimeoutError; RDMAError when buffer or owner are gone.
        Anything else says that it cannot be opened, and from then on this way is not taken.
        """
        import asyncio

        assert handle.device is not None
        borrowed = borrowing.find(handle.owner, handle.device.storage)  # another transfer may have opened it since
        if borrowed is not None:
            return borrowed
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                return await asyncio.shield(self._ask_once(handle))
        except (TimeoutError, RDMAError):
            raise
        except Exception as exc:
            self._refuse(handle, f"its storage cannot be opened here: {exc}")
            raise

    def _ask_once(self, handle: Handle) -> asyncio.Task[Borrowed]:
        """Transfers that want the same storage wait for one answer."""
        import asyncio

        assert handle.device is not None
        key = handle.owner, handle.device.storage
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.get_running_loop().create_task(_ask(handle))

            def asked(done: asyncio.Task[Borrowed]) -> None:
                del self._asking[key]
                if not done.cancelled():
                    done.exception()  # whoever still waits hears of it

            task.add_done_callback(asked)
        return task

    def _refuse(self, handle: Handle, why: str) -> None:
        assert handle.device is not None
        if len(self._refused) >= REFUSED:
            self._refused.clear()
        self._refused[handle.owner, handle.device.card] = why


async def _ask(handle: Handle) -> Borrowed:
    """The buffer's storage, from its owner. RDMAError when buffer or owner are gone, anything else when it is not lent."""
    place = handle.device
    assert place is not None
    try:
        shared = await handle.service.lend_storage.call_one(handle.number, handle.token, manager.service())
    except Exception as exc:
        raise actor.reason(exc, handle) from None
    return borrowing.open(handle.owner, place.storage, shared, interface().find(place.card))


@contextmanager
def _lend(transfer: Transfer, borrowed: Borrowed) -> Iterator[Memory]:
    """The buffer's bytes, in the storage as it is open here."""
    handle = transfer.handle
    place, owner = handle.device, peer(handle)
    assert place is not None
    try:
        owner.enter(handle)
    except RDMAError:
        transfer.kept.clear()
        raise
    try:
        flat: Any = borrowed.bytes
        if flat is None:  # its owner has said that it dropped everything there
            raise BufferDroppedError(f"buffer {handle.number} not found: it was dropped")
        mine = flat[place.offset : place.offset + handle.size]
        yield Memory(0, handle.size, handle.writable, mine, "borrowed memory", device=place.card)
    finally:
        owner.leave(handle.slot)


def _unseen(card: Card) -> str:
    """Why this process has no way to memory of that card; "" when it has."""
    if "torch" not in sys.modules:
        return "it is memory of a device, and this process has not imported torch"
    if interface().find(card):
        return ""
    return f"this process does not see the card it is on ({card.type} {card.uuid or 'without a uuid'})"
