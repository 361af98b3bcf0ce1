"""Receivers that a process may not send to just now: their mailbox, or the way to them, is full."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from monarch._errors import BackpressureTimeout
from monarch._wire.message import Pause
from monarch._wire.peer import Peer
from monarch._wire.waiters import Waiters
from monarch.config import settings


class Backpressure:
    """`agent` is this host's. `queue_limit` bytes wait for a process at most, `mailbox_messages` for an actor before its
    process asks for a pause. `may_wait()` is False on the I/O thread, which everybody else waits for.

    Senders on any thread ask and wait; pauses are set and ended on the I/O thread, the set of them changed in single steps.
    """

    def __init__(
        self,
        agent: str,
        peers: Mapping[str, Peer],
        queue_limit: int,
        mailbox_messages: int,
        may_wait: Callable[[], bool],
    ) -> None:
        self._agent = agent
        self._peers = peers
        self.queue_limit = queue_limit
        self._mailbox_messages = mailbox_messages
        self._may_wait = may_wait
        self.paused: set[tuple[str, str]] = set()  # (process, actor)
        self._resumed = Waiters()

    def must_wait(self, address: str, key: str) -> bool:
        """Returns whether a sender to actor `key` at `address` should wait: its mailbox or the way there is full."""
        if self.paused and (address, key) in self.paused:
            return True
        peer = self._peers.get(address)
        if peer is None:
            return False
        connection = peer.connection
        return (peer.queued if connection is None else connection.queued) >= self.queue_limit

    def wait_room(self, address: str, key: str) -> None:
        """Blocks until `must_wait` is no longer true. BackpressureTimeout after `message_delivery_timeout`."""
        if not self._may_wait():
            return
        timeout = settings.message_delivery_timeout()
        peer = self._peers.get(address)
        if peer is not None and not peer.wait_room(timeout):
            raise BackpressureTimeout(
                f"the connection to {address} has had {self.queue_limit} bytes queued (setting outgoing_queue_bytes) "
                f"for {timeout:g} s (setting message_delivery_timeout): that process does not read"
            )
        if not self._resumed.wait_for(lambda: (address, key) not in self.paused, timeout):
            raise BackpressureTimeout(
                f"actor {key} at {address} has had {self._mailbox_messages} messages waiting (setting "
                f"mailbox_messages) and handled less than half of them within {timeout:g} s (setting "
                f"message_delivery_timeout)"
            )

    def wait_room_for_all(self, addresses: Iterable[str], key: str) -> None:
        """`wait_room` for the receivers of a cast, which goes through the agent."""
        if self.must_wait(self._agent, key):
            self.wait_room(self._agent, key)
        if self.paused:
            for address in addresses:
                if (address, key) in self.paused:
                    self.wait_room(address, key)

    # --- on the I/O thread

    def set_pause(self, address: str, pause: Pause) -> None:
        """A process asks this one to wait with messages to one of its actors, or to go on."""
        if pause.on:
            self.paused.add((address, pause.key))
        else:
            self.paused.discard((address, pause.key))
            self._resumed.tell()

    def process_ended(self, address: str) -> None:
        """Nobody waits for its actors any longer."""
        self.paused = {entry for entry in self.paused if entry[0] != address}
        self._resumed.tell()

    def release_all(self) -> None:
        """This process is ending: each thread that waits here goes on and meets that."""
        self.paused.clear()
        self._resumed.tell()
