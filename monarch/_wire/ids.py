"""Names that are unique without asking anybody, and the public identifiers built from them."""

from __future__ import annotations

import os
import re

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_DIGITS = frozenset(_ALPHABET)
_ID_LENGTH = 11  # base58 digits that hold 64 random bits


def new_id() -> str:
    """64 random bits from the operating system as 11 base58 digits. Safe to use after a fork."""
    return encode58(int.from_bytes(os.urandom(8), "little"))


def encode58(value: int, length: int = _ID_LENGTH) -> str:
    """`value` (0 <= value < 58**length) as exactly `length` base58 digits; 11 hold 64 bits."""
    digits = []
    for _ in range(length):
        value, digit = divmod(value, 58)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


class Uid:
    """A unique name: `label<base58>`, `<base58>`, or a bare label for a singleton.

    Immutable, hashable; `str` and `from_string` are inverse.
    """

    __slots__ = ("_id", "_label")

    def __init__(self, label: str | None, id: str | None) -> None:
        if not label and not id:
            raise ValueError("a Uid needs a label, an id or both")
        if label and ("<" in label or ">" in label):
            raise ValueError(f"invalid label {label!r} of a uid: '<' and '>' enclose the id")
        if id is not None and (not id or not _DIGITS.issuperset(id)):
            raise ValueError(f"invalid uid {id!r}: an id consists of base58 digits only")
        self._label = label or None
        self._id = id

    @classmethod
    def anonymous(cls) -> Uid:
        """A new one without a label: 64 random bits."""
        return cls(None, new_id())

    @classmethod
    def instance(cls, label: str | None = None) -> Uid:
        """A new one with this label."""
        return cls(label, new_id())

    @classmethod
    def instance_from_value(cls, value: int, label: str | None = None) -> Uid:
        """Returns the instance of a given number, as `instance_value` gives it."""
        return cls(label, encode58(value))

    @classmethod
    def singleton(cls, label: str) -> Uid:
        """A bare label, for what there is once."""
        return cls(label, None)

    @classmethod
    def from_string(cls, text: str) -> Uid:
        """Parses what `str` prints. ValueError on anything else."""
        if text.endswith(">"):
            label, opened, id = text[:-1].partition("<")
            if opened and id:
                return cls(label, id)
        elif text and "<" not in text:
            return cls(text, None)
        raise ValueError(f"invalid uid {text!r}: expected 'label<id>', '<id>' or a bare label")

    @property
    def label(self) -> str | None:
        """The part for people; None without one."""
        return self._label

    @property
    def instance_value(self) -> int | None:
        """The random bits as a number; None for a singleton."""
        if self._id is None:
            return None
        value = 0
        for digit in self._id:
            value = value * 58 + _ALPHABET.index(digit)
        return value

    @property
    def is_instance(self) -> bool:
        """Returns whether it has random bits, so that no other one is equal."""
        return self._id is not None

    @property
    def is_singleton(self) -> bool:
        """Returns whether it is a bare label."""
        return self._id is None

    def __str__(self) -> str:
        return self._label or "" if self._id is None else f"{self._label or ''}<{self._id}>"

    def __repr__(self) -> str:
        return f"Uid({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Uid) and (self._label, self._id) == (other._label, other._id)

    def __hash__(self) -> int:
        return hash((self._label, self._id))

    def __reduce__(self) -> tuple[object, ...]:
        return (Uid, (self._label, self._id))


class ProcId:
    """Names one process of the runtime. Hashable; `ProcId.from_string(str(p)) == p`."""

    __slots__ = ("_uid",)

    def __init__(self, uid: Uid) -> None:
        self._uid = uid

    @classmethod
    def from_string(cls, text: str) -> ProcId:
        """Parses what `str` prints. ValueError on anything else."""
        return cls(Uid.from_string(text))

    @property
    def uid(self) -> Uid:
        """The Uid that it is made of."""
        return self._uid

    @property
    def label(self) -> str | None:
        """The part for people; None without one."""
        return self._uid.label

    def __str__(self) -> str:
        return str(self._uid)

    def __repr__(self) -> str:
        return f"ProcId({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcId) and self._uid == other._uid

    def __hash__(self) -> int:
        return hash(self._uid)

    def __reduce__(self) -> tuple[object, ...]:
        return (ProcId, (self._uid,))


# Names are whatever programs chose, dots included; an id in angle brackets ends one.
_ACTOR_ADDR = re.compile(r"(.*<[0-9A-Za-z]+>|[^.]*)\.(.*)@([^@]*)\Z", re.DOTALL)


class ActorAddr:
    """Names one actor: `actor.proc@address`. Unique per actor instance; not meant to be parsed by programs."""

    __slots__ = ("actor_name", "addr", "proc_name")

    def __init__(self, *, addr: str, proc_name: str, actor_name: str) -> None:
        scheme, colon, rest = addr.partition(":")
        if not colon or not scheme:
            raise ValueError(f"invalid address {addr!r}: expected 'scheme:rest'")
        if not proc_name or not actor_name:
            raise ValueError("an ActorAddr needs a proc name and an actor name")
        self.addr = f"inproc://{rest}" if scheme == "local" else addr
        self.proc_name = proc_name
        self.actor_name = actor_name

    @classmethod
    def from_string(cls, text: str) -> ActorAddr:
        """Parses what `str` prints. ValueError on anything else."""
        found = _ACTOR_ADDR.match(text)
        if found is None:
            raise ValueError(f"invalid actor address {text!r}: expected 'actor.proc@address'")
        actor, proc, addr = found.groups()
        return cls(addr=addr, proc_name=proc, actor_name=actor)

    @property
    def uid(self) -> Uid:
        """The actor's name, which no other actor ever has."""
        return Uid.from_string(self.actor_name)

    @property
    def pid(self) -> Uid:
        """The same as `uid`: what older programs ask for."""
        return self.uid

    @property
    def label(self) -> str:
        """The name that `spawn` was given, or the class's."""
        return self.uid.label or ""

    @property
    def proc_id(self) -> str:
        """The unique name of its process, as text."""
        return self.proc_name

    @property
    def proc_label(self) -> str:
        """The part of the process's name for people."""
        return Uid.from_string(self.proc_name).label or ""

    @property
    def is_root(self) -> bool:
        """Returns whether it is a singleton, as the root client is."""
        return self.uid.is_singleton

    def __str__(self) -> str:
        return f"{self.actor_name}.{self.proc_name}@{self.addr}"

    def __repr__(self) -> str:
        return f"ActorAddr({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorAddr) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[object, ...]:
        return (ActorAddr.from_string, (str(self),))
