"""A mutual challenge on the secret of a job, before anything else of a connection is read. No I/O.

    dialler  -> acceptor   hello: magic, version, flags, nonce
    acceptor -> dialler    hello of its own, or hello and a status that refuses
    dialler  -> acceptor   HMAC-SHA256(secret, "dialler" + both hellos)
    acceptor -> dialler    status; HMAC-SHA256(secret, "acceptor" + both hellos + the dialler's proof + status)

Every message has a fixed size, so nothing is parsed but by position, and nothing that follows is swallowed. The dialler
proves first: who scans ports gets nothing made with the secret to guess at offline. Two sides without a secret skip the
proofs ("open"). Nonces are fresh, the transcript is in each proof and so is the role: a recorded or reflected proof fits no
other conversation.

What this protects: nobody without the secret gets a frame parsed here, or is taken for a host of the job. What it does
not: the bytes that follow are neither encrypted nor authenticated. Who can change packets on the way can let two hosts
finish the handshake and then take over their connection, also who only has the port that is dialled and relays it (within a
machine `loopback_peer.stranger_at` finds him); who can read them sees all payloads. Use certificates (TLS) where
the network is not trusted. Who can make a host dial him learns one proof, at which he can guess offline: a secret has to be
long and random (`Secret.generate`), not a password. Without a secret everybody who reaches the port may run code as the
user of this process.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import os
import secrets
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from monarch._linux import private_files

VERSION = 1
MAGIC = b"\x89MNRCH"  # no text, no TLS record: other protocols differ in the first byte

NONCE_BYTES = 32
PROOF_BYTES = hashlib.sha256().digest_size

_REST = struct.Struct(f">HB{NONCE_BYTES}s")  # of a hello, behind the magic. The same size in every version to come.
HELLO_BYTES = len(MAGIC) + _REST.size
_HAS_SECRET = 1
_TLS_HELLO = b"\x16\x03"
TLS_ALERT = b"\x15\x03\x01\x00\x02\x02\x46"  # RFC 8446, 6: fatal, protocol_version; in words that TLS understands
_DIALLER, _ACCEPTOR = b"monarch dialler\0", b"monarch acceptor\0"
_FILE_LIMIT = 64 * 1024  # bytes of a secret's file

_MADE_BY = "`monarch secret FILE` makes one"
_HOW = "set MONARCH_SECRET or MONARCH_SECRET_FILE there, or pass attach_to_workers(secret=...)"
_HOW_HERE = "set MONARCH_SECRET or MONARCH_SECRET_FILE here, or pass attach_to_workers(secret=...)"


class Secret:
    """A secret that the hosts of one job share. Shown by nothing: not repr, not str, not pickle; `reveal` hands out
    the bytes.

    ValueError when empty.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str | bytes) -> None:
        if not value:
            raise ValueError(f"the secret of the job is empty; give a long random text ({_MADE_BY}), or none at all")
        self._value = value.encode() if isinstance(value, str) else bytes(value)

    @classmethod
    def generate(cls) -> Secret:
        """A new one of 256 random bits, as hexadecimal text."""
        return cls(secrets.token_hex(32))

    def reveal(self) -> bytes:
        """The secret itself, to be handed on over a private pipe or in an environment."""
        return self._value

    def mac(self, label: bytes, *parts: bytes) -> bytes:
        """HMAC-SHA256 of `label` and `parts`; the caller sees to it that their lengths are fixed."""
        return hmac.digest(self._value, b"".join((label, *parts)), "sha256")

    def __eq__(self, other: object) -> bool:
        return hmac.compare_digest(self._value, other._value) if isinstance(other, Secret) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "<Secret>"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            "a Secret is not pickled, so that it does not travel by accident; hand `reveal()` on where you must"
        )


def load_secret(given: str | bytes | Secret | None, environ: Mapping[str, str]) -> Secret | None:
    """The secret of the job: `given`; else what the file MONARCH_SECRET_FILE names holds; else MONARCH_SECRET; else None.

    Line ends at the end of a file are not part of it. ValueError when it is empty, or when the file cannot be read, is not a
    regular one, holds more than 64 KiB, may be read by its group or by others, or can have been written by somebody else.
    """
    if isinstance(given, Secret):
        return given
    if given is not None:
        return Secret(given)
    path = environ.get("MONARCH_SECRET_FILE")
    if path is not None:
        return Secret(_read_private(path))
    text = environ.get("MONARCH_SECRET")
    if text is None:
        return None
    if not text:
        raise ValueError(
            "MONARCH_SECRET is set but empty; give it a long random text (`monarch secret` prints one), or unset it"
        )
    return Secret(text)


def _read_private(path: str) -> bytes:
    try:
        fd = private_files.open_to_read(path)
    except private_files.UntrustedFileError as exc:
        way_out = "run chmod 600 on it" if exc.mode is not None else f"take a file of this user's own ({_MADE_BY})"
        raise ValueError(
            f"MONARCH_SECRET_FILE names {path!r}, and {exc}: who can write the secret may know it; {way_out}"
        ) from None
    except OSError as exc:
        raise ValueError(
            f"MONARCH_SECRET_FILE names {path!r}, which cannot be read: {exc.strerror} ({_MADE_BY})"
        ) from exc
    try:
        found = os.fstat(fd)
        if found.st_mode & (stat.S_IRGRP | stat.S_IROTH):
            mode = stat.S_IMODE(found.st_mode)
            raise ValueError(
                f"MONARCH_SECRET_FILE names {path!r}, which others may read (mode {mode:04o}); run chmod 600 on it"
            )
        if found.st_size > _FILE_LIMIT:
            raise ValueError(
                f"MONARCH_SECRET_FILE names {path!r} of {found.st_size} bytes; a secret has at most {_FILE_LIMIT}"
            )
        value = os.read(fd, _FILE_LIMIT).rstrip(b"\r\n")
    finally:
        os.close(fd)
    if not value:
        raise ValueError(f"MONARCH_SECRET_FILE names {path!r}, which is empty ({_MADE_BY})")
    return value


class Status(enum.IntEnum):
    """The acceptor's verdict on the dialler, in one byte."""

    OK = 0
    WRONG_SECRET = 1
    SECRET_WANTED = 2
    NO_SECRET_HERE = 3
    OTHER_VERSION = 4


@dataclass(frozen=True, slots=True)
class HandshakeFailure:
    """The reason why a handshake failed, and what to do. `final`: trying again does not help until somebody changes
    something."""

    text: str
    final: bool


_Step = Iterator[int]


class Challenge:
    """One side's part, moved on by bytes:

        send(challenge.start())
        while not challenge.done and challenge.failure is None:
            send(challenge.received(read_exactly(challenge.wanted)))

    or `closed()` when the other side closed instead. What `received` returns is to be sent even when it ends in failure:
    it tells the other side why. Memory: at most the two hellos and a proof.
    """

    def __init__(self, secret: Secret | None, random: Callable[[int], bytes] = os.urandom) -> None:
        self.wanted = 0
        self.done = False
        self.failure: HandshakeFailure | None = None
        self._secret = secret
        flags = 0 if secret is None else _HAS_SECRET
        self._hello = MAGIC + _REST.pack(VERSION, flags, random(NONCE_BYTES))
        self._theirs = b""
        self._data = b""
        self._out: list[bytes] = []
        self._steps: _Step = self._run()

    def __repr__(self) -> str:
        state = "done" if self.done else self.failure.text if self.failure else f"wants {self.wanted} bytes"
        return f"<{type(self).__name__} {state}>"

    def start(self) -> bytes:
        """Returns what to send before anything is read. To be called once."""
        return self._advance()

    def received(self, data: bytes) -> bytes:
        """`data`: exactly `wanted` bytes of the other side. Returns what to send. ValueError for another number of bytes."""
        if self.done or self.failure or len(data) != self.wanted:
            raise ValueError(f"{self!r} was given {len(data)} bytes")
        self._data = data
        return self._advance()

    def closed(self) -> None:
        """The other side closed the connection."""
        self._fail(
            "the other side closed the connection in the middle of the handshake (it ends, has too many connections in "
            "their handshake, or is not a monarch host)",
            final=False,
        )
        self._steps = iter(())

    def _run(self) -> _Step:
        """Yields the number of bytes it needs, and finds them in `_data`."""
        raise NotImplementedError

    def _advance(self) -> bytes:
        try:
            self.wanted = next(self._steps)
        except StopIteration:
            self._steps = iter(())  # it holds this object: freed at once, and not by the garbage collector
            self.wanted = 0
            self.done = self.failure is None
        sent, self._out = b"".join(self._out), []
        return sent

    def _fail(self, text: str, final: bool = True) -> None:
        if not self.done and self.failure is None:
            self.failure = HandshakeFailure(text, final)
            self.wanted = 0

    def _read_hello(self) -> _Step:
        """Leaves the other side's hello in `_theirs`, or a failure."""
        yield len(MAGIC)
        if self._data != MAGIC:
            if self._data.startswith(_TLS_HELLO):
                self._out.append(TLS_ALERT)
            self._fail(_not_ours(self._data))
            return
        yield _REST.size
        self._theirs = MAGIC + self._data
        if hmac.compare_digest(self._theirs[-NONCE_BYTES:], self._hello[-NONCE_BYTES:]):
            # A port dialled on its own machine can be connected to itself, and somebody may reflect what we say.
            self._fail("the answer is what this side sent: the connection leads back to itself", final=False)

    @property
    def proves(self) -> bool:
        """Returns whether both sides prove that they know a secret."""
        return self._secret is not None

    @property
    def greeted(self) -> bool:
        """Returns whether the other side has sent a hello, so that it is a host of ours or knows what one says."""
        return bool(self._theirs)

    @property
    def _their_version(self) -> int:
        return int(_REST.unpack(self._theirs[len(MAGIC) :])[0])

    @property
    def _they_have_secret(self) -> bool:
        return bool(_REST.unpack(self._theirs[len(MAGIC) :])[1] & _HAS_SECRET)

    def _versions(self) -> str:
        return (
            f"the other side speaks version {self._their_version} of the protocol between hosts, this one version {VERSION}; "
            f"install the same release of pymonarch on all hosts"
        )


class Dialler(Challenge):
    """The side that connected. See `Challenge`."""

    def _run(self) -> _Step:
        self._out.append(self._hello)
        yield from self._read_hello()
        if self.failure:
            return
        if self._their_version != VERSION:
            self._fail(self._versions())
            return
        proof = b""
        if self._secret is not None and self._they_have_secret:
            proof = self._secret.mac(_DIALLER, self._hello, self._theirs)
            self._out.append(proof)
        yield 1
        status = self._data
        if status[0] != Status.OK:
            self._fail(self._why_refused(status[0]))
        elif self._secret is None and self._they_have_secret:
            self._fail(_WHY_REFUSED[Status.SECRET_WANTED])
        elif self._secret is not None:
            if not self._they_have_secret:
                self._fail(_WHY_REFUSED[Status.NO_SECRET_HERE])
                return
            yield PROOF_BYTES
            expected = self._secret.mac(_ACCEPTOR, self._hello, self._theirs, proof, status)
            if not hmac.compare_digest(self._data, expected):
                self._fail(
                    "the other side accepted our proof but could not prove that it knows the secret of the job itself; "
                    "something else answers at this address"
                )

    def _why_refused(self, status: int) -> str:
        if status == Status.OTHER_VERSION:
            return self._versions()
        return _WHY_REFUSED.get(
            status, f"the other side refused the connection for a reason unknown here (status {status})"
        )


_WHY_REFUSED: dict[int, str] = {
    Status.WRONG_SECRET: (
        f"the other side has another secret than this one; give both the same: {_HOW_HERE}, and the same on the other side"
    ),
    Status.SECRET_WANTED: f"the other side wants the secret of the job, and this side has none; {_HOW_HERE}",
    Status.NO_SECRET_HERE: (
        f"this side has a secret and the other side has none, so it cannot be trusted; {_HOW}, and start it again"
    ),
}


class Acceptor(Challenge):
    """The side that was connected to. See `Challenge`."""

    def _run(self) -> _Step:
        yield from self._read_hello()
        if self.failure:
            return
        self._out.append(self._hello)
        if self._their_version != VERSION:
            self._refuse(Status.OTHER_VERSION, self._versions())
            return
        if self._secret is None and self._they_have_secret:
            self._refuse(
                Status.NO_SECRET_HERE,
                f"the other side has a secret and this side has none, so it does not trust this side; {_HOW_HERE}",
            )
            return
        if self._secret is not None and not self._they_have_secret:
            self._refuse(Status.SECRET_WANTED, f"the other side has no secret, and this side wants one; {_HOW}")
            return
        if self._secret is None:
            self._out.append(bytes([Status.OK]))
            return
        yield PROOF_BYTES
        proof = self._data
        if not hmac.compare_digest(proof, self._secret.mac(_DIALLER, self._theirs, self._hello)):
            self._refuse(Status.WRONG_SECRET, f"the other side has another secret than this one; {_HOW}")
            return
        status = bytes([Status.OK])
        self._out += [status, self._secret.mac(_ACCEPTOR, self._theirs, self._hello, proof, status)]

    def _refuse(self, status: Status, text: str) -> None:
        self._out.append(bytes([status]))
        self._fail(text)


def _not_ours(data: bytes) -> str:
    """Returns what those bytes look like, for people: never the bytes of what may be somebody's password."""
    guess = ""
    if data[:2] in (_TLS_HELLO, TLS_ALERT[:2]):
        guess = (
            ": it speaks TLS, and this side has no certificates. "
            "Give ca, certificate and private_key on both sides, or on neither"
        )
    elif data[:4] in (b"GET ", b"POST", b"HEAD", b"PUT ", b"HTTP"):
        guess = ": it speaks HTTP"
    elif data[:4] == b"SSH-":
        guess = ": it speaks SSH"
    return f"the other side is not a monarch host{guess}"
