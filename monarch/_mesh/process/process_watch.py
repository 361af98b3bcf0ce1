"""A watch over other processes, those of this host and of others: who asks hears of their end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from monarch._mesh.failures.ledger import describe_exit, whereabouts
from monarch._runtime.context import here
from monarch._runtime.replies import Entry
from monarch._wire.message import ProcEnded

if TYPE_CHECKING:
    from monarch._runtime.proc import Proc

_REPLACED = 0.1  # seconds within which word of a process that took the place of an earlier one follows that of its end


class _ProcessWatch(Entry):
    """See `watch_processes`."""

    __slots__ = ("_ended", "_members", "_proc")

    def __init__(self, members: Mapping[str, int], ended: Callable[[str, str, bool], None]) -> None:
        super().__init__(None)
        self._members = dict(members)
        self._ended = ended
        self._proc = here()
        self._proc.ports.add(self)
        self._proc.loop.call_soon(self._follow)

    def _follow(self) -> None:
        for address, incarnation in list(self._members.items()):
            if incarnation < 0:
                self._proc.processes.follow(address, functools.partial(self._lives, address))
            else:
                self._proc.processes.follow(address)
            known = self._proc.processes.end_of(address)
            if known is not None:  # it was told before
                self.process_ended(known)

    def _lives(self, address: str, incarnation: int) -> None:
        if self._members.get(address, 0) < 0:
            self._members[address] = incarnation

    def process_ended(self, ended: ProcEnded) -> None:
        incarnation = self._members.get(ended.address)
        if incarnation is None or ended.incarnation < incarnation:
            return
        if incarnation < 0:
            self._proc.loop.call_later(_REPLACED, lambda: self._look(ended))
        else:
            self._tell(ended)

    def process_replaced(self, ended: ProcEnded) -> None:
        if self._members.get(ended.address, -1) >= 0:
            self.process_ended(ended)

    def _look(self, ended: ProcEnded) -> None:
        if self._proc.processes.end_of(ended.address) is not None:
            self._tell(ended)

    def _tell(self, ended: ProcEnded) -> None:
        if self._members.pop(ended.address, None) is not None:
            self._ended(ended.address, f"{describe_exit(ended)}, {whereabouts(ended)}", ended.stopped)

    def give_up(self, error: BaseException) -> None:
        self.close()


class WordOfEnds(Entry):
    """Ready when it is known here, and was told to all who watch, that these processes have ended, or nothing was known of
    them; after `patience` seconds in any case. Made on the I/O thread.

    `over`: their addresses, and the least incarnation that may live there.
    """

    __slots__ = ("_over", "_proc")

    def __init__(self, proc: Proc, over: Mapping[str, int], patience: float) -> None:
        super().__init__(None)
        self._proc = proc
        self._over = {
            address: least
            for address, least in over.items()
            if address != proc.address and not self._is_known(address, least)
        }
        if not self._over:
            self.set_ready()
            return
        proc.ports.add(self)
        self.timer = proc.loop.call_later(patience, self._finish)
        for address in list(self._over):
            self._ask(address)

    def _is_known(self, address: str, least: int) -> bool:
        peer = self._proc.processes.peers.get(address)
        return peer is None or peer.incarnation >= (least if peer.ended is None else least - 1)

    def _ask(self, address: str) -> None:
        self._proc.processes.follow(address, lambda incarnation: self._look(address))

    def _look(self, address: str) -> None:
        least = self._over.get(address)
        if least is not None and self._is_known(address, least):
            del self._over[address]
            if not self._over:
                self._proc.loop.call_soon(self._finish)  # once all who watch were told

    def process_ended(self, ended: ProcEnded) -> None:
        self._look(ended.address)
        if ended.address in self._over:  # it was one before that
            self._ask(ended.address)

    def process_replaced(self, ended: ProcEnded) -> None:
        self._look(ended.address)

    def _finish(self) -> None:
        if not self.ready:
            self.close()
            self.set_ready()

    def give_up(self, error: BaseException) -> None:
        self.close()


def watch_processes(members: Mapping[str, int], ended: Callable[[str, str, bool], None]) -> Callable[[], None]:
    """Watches processes, given as their addresses and incarnations, a negative one for whichever lives there now.

    `ended(address, how, stopped)` is called on the I/O thread, once for each that ends or has ended, and must not wait.
    `stopped`: whether it was asked to end. Returns what ends the watch."""
    return _ProcessWatch(members, ended).close


def own_process() -> tuple[str, int]:
    """Returns address and incarnation of this process, as `watch_processes` takes them."""
    proc = here()
    return proc.address, proc.incarnation
