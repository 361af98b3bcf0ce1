"""What a process that moves bytes by libibverbs and a buffer's owner tell each other: addresses of queue pairs, and keys.

All of it goes over the actors' messages (`Manager.verbs`) and nowhere else, so only processes of the job learn it. No repr
here shows a key. The fabric itself asks nobody who he is and encrypts nothing: whoever can put packets on it and guesses a
queue pair's number, its sequence number and a key of 32 bits reaches what that key is for.

    Lend   of a buffer, to read or to write             answered by Lent, or by why not (a str)
    Meet   a queue pair here, for a device there         answered by the End there, or by why not (a str)

Both come from another process: `check` raises ValueError for what no process of ours would send.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

MOST = 64  # devices in a message
NAME = 64  # characters of a device's name (IB_DEVICE_NAME_MAX)


class End(NamedTuple):
    """A queue pair, as the other side needs it: `sequence` is the number of the first packet it sends, `lid` its place in an
    InfiniBand subnet (0 on Ethernet), `mtu` by its number in verbs, `reads` how many RDMA reads at a time it can serve."""

    nic: str
    number: int
    sequence: int
    lid: int
    gid: bytes
    mtu: int
    reads: int

    @classmethod
    def of(cls, nic: str, number: int, lid: int, gid: bytes, mtu: int, reads: int) -> End:
        """Of a new one: where it begins to count is random."""
        return cls(nic, number, int.from_bytes(os.urandom(3), "little"), lid, gid, mtu, reads)

    def check(self) -> End:
        _name(self.nic)
        _number("queue pair", self.number, 0, 2**24 - 1)
        _number("sequence", self.sequence, 0, 2**24 - 1)
        _number("LID", self.lid, 0, 2**16 - 1)
        _number("MTU", self.mtu, 1, 5)
        _number("reads", self.reads, 1, 255)
        if type(self.gid) is not bytes or len(self.gid) != 16:
            raise ValueError("a GID has 16 bytes")
        return self

    def __repr__(self) -> str:
        return f"<End at {self.nic}>"


class Key(NamedTuple):
    """How a buffer is reached by one of its owner's devices: the key of its memory, and that of its control word."""

    nic: str
    ethernet: bool
    memory: int
    word: int

    def __repr__(self) -> str:
        return f"<Key for {self.nic}>"


class Lend(NamedTuple):
    reader: bytes  # who asks: 16 random bytes of that process
    number: int
    token: int
    write: bool

    def check(self) -> Lend:
        _reader(self.reader)
        _number("buffer", self.number, 0, 2**64 - 1)
        _number("token", self.token, 0, 2**64 - 1)
        return self

    def __repr__(self) -> str:
        return f"<Lend of buffer {self.number}>"


class Lent(NamedTuple):
    """`open`: the numbers of the queue pairs that the owner has for whoever asked; others it had are closed."""

    keys: tuple[Key, ...]
    open: tuple[int, ...]


class Meet(NamedTuple):
    reader: bytes
    nic: str
    end: End

    def check(self) -> Meet:
        _reader(self.reader)
        _name(self.nic)
        if type(self.end) is not End:
            raise ValueError("a queue pair meets a queue pair")
        self.end.check()
        return self

    def __repr__(self) -> str:
        return f"<Meet of {self.end!r} and {self.nic}>"


def checked(answer: Any) -> Lent:
    """An owner's answer to Lend. ValueError."""
    if type(answer) is not Lent or len(answer.keys) > MOST or len(answer.open) > MOST * MOST:
        raise ValueError("it sent an answer that this version does not know")
    for key in answer.keys:
        _name(key.nic)
        _number("key", key.memory, 0, 2**32 - 1)
        _number("key", key.word, 0, 2**32 - 1)
    return answer


def _number(what: str, value: Any, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what}: not a number from {least} to {most}")


def _name(value: Any) -> None:
    if type(value) is not str or not 0 < len(value) <= NAME:
        raise ValueError("not the name of a device")


def _reader(value: Any) -> None:
    if type(value) is not bytes or len(value) != 16:
        raise ValueError("whoever asks says who he is in 16 bytes")
