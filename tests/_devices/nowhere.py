"""The place where memory of an imitated card begins; known without torch."""

NOWHERE = 1 << 60  # no process has memory there: whoever takes such an address for the host's dies of it
