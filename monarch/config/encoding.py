"""The encoding of message bodies: a choice programs may make, of which the runtime here takes no notice."""

from __future__ import annotations

import enum


class Encoding(enum.Enum):
    """Values of the setting `default_encoding`, which is accepted and which nothing reads."""

    Bincode = "bincode"
    Json = "json"
    Multipart = "multipart"

    def __repr__(self) -> str:
        return f"Encoding.{self.name}"
