"""Hooks, by which the layer above hears of one process and is asked: one object, given to its Proc."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from monarch._wire.message import ActorEnded, Bounced, Failure, ProcEnded, Suspected

if TYPE_CHECKING:
    from monarch._errors import NotSendableError
    from monarch._runtime.instance import Instance
    from monarch._runtime.remote_errors import Raw
    from monarch._runtime.replies import Entry
    from monarch._runtime.unobserved_errors import UnobservedError


class Hooks:
    """Does nothing and knows nothing; subclasses override what they need. Methods run on the I/O thread and may not block,
    except where they say otherwise."""

    def process_ended(self, ended: ProcEnded) -> None:
        """A process has ended. Called once, when those who waited for its answers have been told."""

    def host_replaced(self, host: str) -> None:
        """Another host has taken the place of one that was lost, under its name."""

    def process_suspected(self, suspected: Suspected) -> None:
        """A process gives no sign of life, or runs again."""

    def actor_failed(self, event: ActorEnded) -> None:
        """An actor whose owner is here has failed. Any thread: the actor may be here as well."""

    def bounced(self, bounced: Bounced) -> None:
        """A message that nobody waits for could not be delivered. Any thread."""

    def connection_broke(self, address: str) -> None:
        """The connection to a process that lives has broken: messages to it may be lost."""

    def look_for_cause(self) -> None:
        """A long wait is about to end without result. Any thread; finds out meanwhile what keeps the program from going
        on."""

    def cause(self) -> str:
        """Returns what was found a moment ago, as a sentence; "" when nothing was. Any thread."""
        return ""

    def agent_lost(self, reason: str) -> None:
        """The connection to this host's agent has ended."""

    def check(self, key: str, receivers: Sequence[tuple[int, int, str]]) -> Failure | None:
        """Any thread: why a call to actors of mesh `key` cannot succeed, as far as this process knows. Receivers are (rank
        in the addressed view, rank in the mesh, process)."""
        return None

    def call_failed(
        self, entry: Entry, caller: Instance, key: str, awaited: Sequence[int], failed: Sequence[int]
    ) -> UnobservedError | None:
        """Any thread: a call of `caller` to actors of mesh `key` is about to raise the failure of ranks `failed`; of those in
        `awaited` it has no answer. What is to be done if nobody looks at it (perhaps what `entry` has already); None: nothing
        is."""
        return None

    def call_raised(self, entry: Entry, raw: Raw) -> UnobservedError | None:
        """Any thread: an endpoint that `entry` has called raised. As above."""
        return None

    def cast_to(self, sender: str) -> Sequence[str]:
        """Any thread: the processes to which casts of that actor were sent, through agents."""
        return ()

    def encode_for(self, address: str, value: Any, error: NotSendableError) -> tuple[bytes, Sequence[memoryview]]:
        """Any thread: encodes a value for the process at an address, which could not be encoded for any. Raises `error` when
        that changes nothing."""
        raise error

    def addresses_on(self, host: str) -> Sequence[str]:
        """The processes of a host that this layer knows of."""
        return ()
