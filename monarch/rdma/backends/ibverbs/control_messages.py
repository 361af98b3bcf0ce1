"""Messages between a process that moves bytes by libibverbs and a buffer's owner: addresses of queue pairs, and keys.

All of it goes over the actors' messages (`Manager.verbs`) and nowhere else, so only processes of the job learn it. No
repr here shows a key. The fabric itself authenticates nobody and encrypts nothing: a machine that can put packets on it
and guesses a queue pair's number, its sequence number and a key of 32 bits reaches what that key is for.

    KeyRequest        for a buffer, to read or to write      answered by a KeyReply, or by why not (a str)
    ConnectRequest    a queue pair here, for a device there  answered by the QueuePairEnd there, or by why not (a str)
    OpenPairsRequest  which queue pairs are still there      answered by an OpenPairsReply, or by why none (a str)

The side that asks chooses for both ends: a KeyReply says what the owner has, a ConnectRequest which of its addresses to use.

All come from another process: `check` raises ValueError for what no process of ours would send.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from monarch.rdma.backends.ibverbs.pairing import TOLD, Gid, NicPort

MOST = 64  # devices in a message
NAME = 64  # characters of a device's name (IB_DEVICE_NAME_MAX)


class QueuePairEnd(NamedTuple):
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
    def of(cls, nic: str, number: int, lid: int, gid: bytes, mtu: int, reads: int) -> QueuePairEnd:
        """Describes a new queue pair, which begins to count at a random number."""
        return cls(nic, number, int.from_bytes(os.urandom(3), "little"), lid, gid, mtu, reads)

    def check(self) -> QueuePairEnd:
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
        return f"<QueuePairEnd at {self.nic}>"


class RemoteKeys(NamedTuple):
    """The keys by which one of its owner's devices reaches a buffer: that of its memory, and that of its control word."""

    nic: str
    memory: int
    word: int

    def __repr__(self) -> str:
        return f"<RemoteKeys for {self.nic}>"


class KeyRequest(NamedTuple):
    """`encrypted`: their messages go by TLS, the bytes would not. `nics`: devices to lend by beside those near the memory."""

    reader: bytes  # who asks: 16 random bytes of that process
    number: int
    token: int
    write: bool
    encrypted: bool = False
    nics: tuple[str, ...] = ()

    def check(self) -> KeyRequest:
        _reader(self.reader)
        _number("buffer", self.number, 0, 2**64 - 1)
        _number("token", self.token, 0, 2**64 - 1)
        if type(self.nics) is not tuple or len(self.nics) > MOST:
            raise ValueError("not the names of some devices")
        for nic in self.nics:
            _name(nic)
        return self

    def __repr__(self) -> str:
        return f"<KeyRequest for buffer {self.number}>"


class KeyReply(NamedTuple):
    """`open`: the numbers of the queue pairs that the owner has for the requester; others it had are closed. `ports`: all the
    devices by which it could be reached, those that have no key yet as well."""

    keys: tuple[RemoteKeys, ...]
    open: tuple[int, ...]
    ports: tuple[NicPort, ...] = ()


class OpenPairsRequest(NamedTuple):
    reader: bytes

    def check(self) -> OpenPairsRequest:
        _reader(self.reader)
        return self


class OpenPairsReply(NamedTuple):
    """The numbers of the queue pairs that the owner has for the requester."""

    open: tuple[int, ...]


class ConnectRequest(NamedTuple):
    """`slot`: which of the port's addresses the owner's queue pair is to use."""

    reader: bytes
    nic: str
    end: QueuePairEnd
    slot: int = 0

    def check(self) -> ConnectRequest:
        _reader(self.reader)
        _name(self.nic)
        _number("GID", self.slot, 0, 255)
        if type(self.end) is not QueuePairEnd:
            raise ValueError("a queue pair meets a queue pair")
        self.end.check()
        return self

    def __repr__(self) -> str:
        return f"<ConnectRequest of {self.end!r} and {self.nic}>"


def checked(answer: Any) -> KeyReply:
    """Returns an owner's answer to a KeyRequest, checked. ValueError."""
    if (
        type(answer) is not KeyReply
        or max(len(answer.keys), len(answer.ports)) > MOST
        or len(answer.open) > MOST * MOST
    ):
        raise ValueError("it sent an answer that this version does not know")
    for key in answer.keys:
        _name(key.nic)
        _number("key", key.memory, 0, 2**32 - 1)
        _number("key", key.word, 0, 2**32 - 1)
    for port in answer.ports:
        _port(port)
    return answer


def _port(port: NicPort) -> None:
    if type(port) is not NicPort or type(port.gids) is not tuple or not 0 < len(port.gids) <= TOLD:
        raise ValueError("not a device with its addresses")
    _name(port.nic)
    _number("rate", port.rate, 0, 2**40)
    _number("partition key", port.pkey, 0, 2**16 - 1)
    for gid in port.gids:
        if type(gid) is not Gid or type(gid.raw) is not bytes or len(gid.raw) != 16 or type(gid.kind) is not str:
            raise ValueError("a GID has 16 bytes and a kind")
        _number("GID", gid.slot, 0, 255)


def _number(what: str, value: Any, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what}: not a number from {least} to {most}")


def _name(value: Any) -> None:
    if type(value) is not str or not 0 < len(value) <= NAME:
        raise ValueError("not the name of a device")


def _reader(value: Any) -> None:
    if type(value) is not bytes or len(value) != 16:
        raise ValueError("whoever asks says who he is in 16 bytes")
