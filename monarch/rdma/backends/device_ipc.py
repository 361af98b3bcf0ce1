"""The buffer is another process's on this host, in memory of a card that this process sees as well: by torch's CUDA IPC
(the same names under HIP) its storage is opened here once, then the card copies by itself.

The first transfer asks the owner's Manager for the storage (see `lending`), which stays open here while a buffer is in
it; after that the owner takes no part. What cannot be lent or opened goes another way for AVOID seconds. Every chunk is
copied under the buffer's lock, and waited for before that is left, so a drop waits for it. Local memory may be on the same
card, on another one, or the host's.

A process with a visible-devices variable that hides the owner's card cannot open its memory. By default processes see all
cards of the machine: `monarch._devices.own_device`.

Never run on hardware.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from monarch._devices.forked import never_free
from monarch._devices.memory import Card, interface
from monarch._errors import RDMAError
from monarch.actor import bind_context
from monarch.rdma import device_copies, manager
from monarch.rdma.backends import Backend, through_actors
from monarch.rdma.backends.owner_view import view_of_owner, why_unreachable
from monarch.rdma.buffer_handle import BufferHandle, Owner
from monarch.rdma.lending import Borrowed, borrowing
from monarch.rdma.local_memory import LocalMemory
from monarch.rdma.registry import registry
from monarch.rdma.rerouting import AvoidedRoutes, reroute
from monarch.rdma.transfer import Transfer

if TYPE_CHECKING:
    import asyncio

AVOID = 60.0  # seconds in which a storage that was not lent, or a card whose memory could not be opened, is left alone

# On the Mover's loop only: what owners have been asked for.
_asking: dict[tuple[Owner, int], asyncio.Task[Borrowed]] = {}


def _after_fork() -> None:
    """The answers come to the parent."""
    never_free(_asking.copy())
    _asking.clear()


os.register_at_fork(after_in_child=_after_fork)


class _RefusedError(Exception):
    """The owner does not lend the storage."""


class DeviceIpc:
    """Copies between processes by the card. `others` do the transfers that cannot be done this way after all."""

    name = "device_ipc"
    uses_network = False
    takes_devices = True

    def __init__(self, others: Sequence[Backend]) -> None:
        self._others = others
        self._refused: AvoidedRoutes[tuple[Owner, Card | int]] = AvoidedRoutes()

    def why_unavailable(self, handle: BufferHandle) -> str:
        if handle.device is None:
            return "it is not memory of a device"
        owner, card, storage = handle.owner, handle.device.card, handle.device.storage
        refused = self._refused.why((owner, card)) or self._refused.why((owner, storage))
        return why_unreachable(handle) or refused or _unseen(card)

    def start(self, transfer: Transfer) -> None:
        """Copies by the card. Where the storage cannot be opened, this transfer and those to come take another path."""
        place = transfer.handle.device
        assert place is not None
        if transfer.late():
            transfer.finish(transfer.timed_out())
        elif not self._copy(transfer, borrowing.find(transfer.handle.owner, place.storage)):
            next_path = bind_context(partial(reroute, transfer, self._others))
            manager.start(lambda: self._open(transfer, next_path))

    def _copy(self, transfer: Transfer, borrowed: Borrowed | None) -> bool:
        """False when the storage is not open, or not any more; a copy that has begun keeps it open."""
        flat = None if borrowed is None else borrowed.bytes
        if borrowed is None or flat is None:
            return False
        device_copies.run(transfer, partial(_lend, transfer, flat), borrowed.device)
        return True

    async def _open(self, transfer: Transfer, next_path: Callable[[], None]) -> None:
        import asyncio

        handle = transfer.handle
        assert handle.device is not None
        try:
            async with asyncio.timeout(max(0.0, transfer.left())):
                # Another transfer may have opened it since; and it may be closed again, for others that are used more.
                while not self._copy(transfer, borrowing.find(handle.owner, handle.device.storage)):
                    await asyncio.shield(_ask_once(handle))
        except TimeoutError:
            transfer.finish(transfer.timed_out())
        except RDMAError as exc:
            transfer.finish(exc)
        except Exception as exc:
            self._refuse(handle, exc)
            next_path()
        except BaseException as exc:  # this process is ending
            transfer.finish(exc)
            raise

    async def borrow(self, handle: BufferHandle, seconds: float) -> tuple[Any, str]:
        """The bytes of the buffer's storage, open here as long as somebody has them, and what this process calls the card:
        release them there. On the Mover's loop.

        TimeoutError; RDMAError when buffer or owner are gone. Anything else: this way is not to be taken, for some time.
        """
        import asyncio

        assert handle.device is not None
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                while True:
                    borrowed = borrowing.find(handle.owner, handle.device.storage)
                    flat = None if borrowed is None else borrowed.bytes
                    if borrowed is not None and flat is not None:
                        return flat, borrowed.device
                    await asyncio.shield(_ask_once(handle))
        except (TimeoutError, RDMAError):
            raise
        except Exception as exc:
            self._refuse(handle, exc)
            raise

    def _refuse(self, handle: BufferHandle, error: Exception) -> None:
        assert handle.device is not None
        if isinstance(error, _RefusedError):
            self._refused.add((handle.owner, handle.device.storage), f"its storage is not lent: {error}", AVOID)
        else:
            why = f"its storage cannot be opened here: {error}"
            self._refused.add((handle.owner, handle.device.card), why, AVOID)


def _ask_once(handle: BufferHandle) -> asyncio.Task[Borrowed]:
    """Transfers that want the same storage wait for one answer."""
    import asyncio

    assert handle.device is not None
    key = handle.owner, handle.device.storage
    task = _asking.get(key)
    if task is None:
        task = _asking[key] = asyncio.get_running_loop().create_task(_ask(handle))

        def asked(done: asyncio.Task[Borrowed]) -> None:
            del _asking[key]
            if not done.cancelled():
                done.exception()  # those that still wait hear of it

        task.add_done_callback(asked)
    return task


async def _ask(handle: BufferHandle) -> Borrowed:
    """The buffer's storage, from its owner. RDMAError when buffer or owner are gone, _RefusedError when it is not lent, and
    what torch raises when it cannot be opened.
    """
    place = handle.device
    assert place is not None
    with borrowing.asking(handle.owner, place.storage):
        mine = manager.service(), registry().owner
        try:
            shared = await handle.service.lend_storage.call_one(handle.number, handle.token, *mine)
        except Exception as exc:
            why = through_actors.reason(exc, handle)
            raise why if isinstance(why, RDMAError) else _RefusedError(str(why)) from None
        return borrowing.open(handle.owner, place.storage, shared, interface().find(place.card))


@contextmanager
def _lend(transfer: Transfer, flat: Any) -> Iterator[LocalMemory]:
    """The buffer's bytes, in the storage as it is open here."""
    handle = transfer.handle
    place, owner = handle.device, view_of_owner(handle)
    assert place is not None
    owner.enter(handle)
    try:
        mine = flat[place.offset : place.offset + handle.size]
        yield LocalMemory(0, handle.size, handle.writable, mine, "borrowed memory", device=place.card)
    finally:
        owner.leave(handle.slot)


def _unseen(card: Card) -> str:
    """Returns why this process has no way to memory of that card; "" when it has."""
    if "torch" not in sys.modules:
        return "it is memory of a device, and this process has not imported torch"
    if interface().find(card):
        return ""
    return f"this process does not see the card it is on ({card.type} {card.uuid or 'without a uuid'})"
