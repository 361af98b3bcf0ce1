"""A message that came back: what its sender is told, and a program's hook for that is given."""

from __future__ import annotations

from monarch._wire.message import Bounced


class UndeliverableMessageEnvelope:
    """A message that could not be delivered, for `_handle_undeliverable_message`."""

    def __init__(self, bounced: Bounced) -> None:
        self._bounced = bounced

    def sender(self) -> str:
        """The unique name of the actor that sent it."""
        return self._bounced.sender

    def dest(self) -> str:
        """Returns where it was to go, as an address."""
        return self._bounced.dest

    def error_msg(self) -> str:
        """Returns why it could not be delivered."""
        return self._bounced.error

    def report(self) -> str:
        """All of it as text for people."""
        b = self._bounced
        to = "for" if b.what != b.dest else "to"
        return f"undeliverable message {to} {b.what}\n  sender: {b.sender}\n  dest: {b.dest}\n  error: {b.error}"

    def __repr__(self) -> str:
        return f"<undeliverable {self._bounced.what} to {self._bounced.dest}>"
