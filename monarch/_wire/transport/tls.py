"""TLS over a stream socket, with the methods of a socket that StreamConnection uses.

Of OpenSSL only the state machine is used (`ssl.MemoryBIO`); bytes go through the plain socket. The usual `ssl.SSLSocket`
does not do: it may not be used by a sender and a reader at once, it has no `sendmsg`, and what a call could not write must
be given to it again in the same memory.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from monarch._linux import private_files
from monarch._linux.locks import Lock
from monarch._wire.auth import TLS_ALERT
from monarch._wire.frame import Buffer

_CHUNK = 128 * 1024  # plaintext that is encrypted before the kernel is asked to take it
_READ = 256 * 1024  # ciphertext read at a time
_EMPTY = 32 * 1024  # ciphertext with nothing in it, read at a time and borne: twice the largest record
_WORTH = 32  # bytes of ciphertext that come with one of plaintext at most; a record with one byte has 23
_ANSWERS = 256 * 1024  # ciphertext that waits for room, of which at most half is data
_PEM = "-----BEGIN"
_EXPIRED = 10  # OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED
_RENEW = "`monarch certs` makes new ones; programs and workers that start from then on use them"

Pem = str | bytes | Path


def context(ca: Pem, certificate: Pem, private_key: Pem, server: bool) -> ssl.SSLContext:
    """Returns what one side of the connections of a job needs; `server`: the side that listens. Each argument is the
    path of a PEM file, or PEM itself as bytes or text. TLS 1.3, or 1.2 when the other side has no better.

    Both sides have to show a certificate that `ca` signed. Host names are not checked: the CA is the job's own and signs
    for nobody else, hosts are often known by addresses that are given out when the job starts, and any host of a job may
    already do what any other can. For the same reason a CA that signs for others too (a company's, or a public one) must
    not be used here. A certificate that names its uses needs both clientAuth and serverAuth: every host dials and listens.

    ValueError when something cannot be read or does not fit.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.options |= ssl.OP_NO_RENEGOTIATION
    if server:
        made.num_tickets = 0  # connections are long, and nothing is written behind the challenge's back
    with _explained("ca", ca), _as_file(ca) as path:
        made.load_verify_locations(cafile=path)
    with (
        _explained("certificate or private_key", certificate),
        _as_file(certificate) as chain,
        _as_file(private_key) as key,
    ):
        made.load_cert_chain(chain, key, password=_no_password)
    return made


def _no_password() -> str:
    """Without this OpenSSL would ask at the terminal."""
    raise ValueError("private_key is protected by a password; give it without one, in a file of mode 0600")


@contextmanager
def _explained(what: str, given: Pem) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as exc:
        raise ValueError(f"{what}: {_named(given)} is not a valid PEM: {exc.reason or exc}") from exc
    except OSError as exc:
        raise ValueError(f"{what}: cannot read {exc.filename or _named(given)}: {exc.strerror or exc}") from exc


def _named(given: Pem) -> str:
    """Returns, for messages, a path, or what stands in its place, of which nothing is shown."""
    return f"the PEM given ({len(given)} characters)" if _is_pem(given) else repr(str(given))  # type: ignore[arg-type]


def _is_pem(given: Pem) -> bool:
    return isinstance(given, bytes) or (isinstance(given, str) and _PEM in given)


@contextmanager
def _as_file(given: Pem) -> Iterator[str]:
    """A path to read from, of a file that only this user or root can have written: others' certificates would let them in.
    What came as bytes is a file in memory only: a key is written to no disk."""
    if not _is_pem(given):
        try:
            fd = private_files.open_to_read(str(given))
        except FileNotFoundError as exc:
            raise FileNotFoundError(exc.errno, exc.strerror, str(given)) from None
    else:
        fd = private_files.memory_file(given if isinstance(given, bytes) else str(given).encode())
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


class _Scratch(threading.local):
    """The buffer into which ciphertext is read, on its way to OpenSSL: one a thread, not one a connection."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_READ))


_scratch = _Scratch()


class TlsFailed(OSError):
    """TLS cannot go on with this other side. `tls_failure`: why, and what to do."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.tls_failure = text


class TlsSocket:
    """A connected non-blocking socket, encrypted. One thread may send while another receives.

    Sends: when the kernel does not take all ciphertext of what was encrypted, one byte less than that is reported as sent.
    So the caller has something left, goes on waiting for room, and hands in that byte again, which is then only counted.
    Hence the rule for callers: after a send that took less than it was given, or raised BlockingIOError, the next begins
    with the bytes that are left. (BlockingIOError for two bytes or more means that none of them was used.) Memory: at most
    the ciphertext of 128 KiB beside what OpenSSL keeps.

    Receives: `recv_into` fills the buffer as far as what has come allows; then `pending` says whether there may be more
    although the descriptor is silent.

    TLS has messages of its own, such as for new keys, which cost this side more than data of their size and may have to be
    answered. Who sends _EMPTY bytes of them and no data, or takes none of the answers, is no host of a job: TlsFailed.
    Among data they cost what small records do, and each call returns after a few reads of them.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server: bool) -> None:
        self._sock = sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server)
        self._server = server
        self._lock = Lock()  # OpenSSL's objects are not for two threads at once; held for computing, not for waiting
        self._unsent = memoryview(b"")  # ciphertext that the kernel has not taken
        self._owed = 0  # bytes of the next send that are encrypted already: 0 or 1
        self._empty = 0  # bytes of ciphertext that came, less those that plaintext has explained
        self._more = True  # the kernel may have more than was read last
        self._broken = ""
        self.spoken = False  # whether OpenSSL had something to say: of a server, to a valid first message
        self._ended = False
        self.established = False

    def __repr__(self) -> str:
        state = self._tls.version() if self.established else "in handshake"
        return f"<TlsSocket {'server' if self._server else 'client'}, {state}>"

    def fileno(self) -> int:
        return self._sock.fileno()

    def setblocking(self, flag: bool, /) -> None:
        if flag:
            raise ValueError("a TlsSocket does not block")
        self._sock.setblocking(False)

    @property
    def unsent(self) -> bool:
        """Returns whether ciphertext waits for room in the kernel's buffer."""
        return bool(self._unsent)

    # --- the handshake

    def handshake(self) -> bool:
        """Goes on with it as far as what has come allows. Whether it is over. TlsFailed when it cannot be, OSError when the
        connection broke."""
        if self.established:
            return True
        with self._lock:
            try:
                while not self._step():
                    if not self._flush() or not self._fill(_EMPTY):
                        return False
                self._empty = 0
            except ssl.SSLError as exc:
                self._collect()
                if not self.spoken and not self._unsent:
                    self._unsent = memoryview(TLS_ALERT)  # OpenSSL says nothing to what is no TLS at all
                try:
                    self._flush()  # the alert that tells the other side
                except OSError:
                    pass
                raise TlsFailed(self._explain(exc)) from exc
            self._flush()
        return self.established

    def _step(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._collect()
            return False
        self._collect()
        self.established = True
        return True

    def _explain(self, exc: ssl.SSLError) -> str:
        reason = (exc.reason or str(exc)).replace("_", " ").lower()
        if isinstance(exc, ssl.SSLEOFError):
            return "the other side ended the TLS handshake; it may have no certificates (tls:// on one side only)"
        if isinstance(exc, ssl.SSLCertVerificationError):
            if exc.verify_code == _EXPIRED:
                return f"the other side's certificate has expired. {_RENEW}"
            return (
                f"the other side's certificate is not accepted: {exc.verify_message}. "
                f"All hosts of a job need certificates that its one CA has signed"
            )
        if "alert" in reason:
            return explain_alert(reason)
        if self.established:
            return f"what came is not what the other side encrypted ({reason}); something between the hosts changed it"
        if "peer did not return a certificate" in reason:
            return "the other side has shown no certificate; all hosts of a job need one that its CA has signed"
        return f"the other side does not speak TLS as this one does ({reason}); both need certificates, or neither"

    # --- sending, any thread, one at a time

    def flush(self) -> bool:
        """Hands the kernel what is encrypted. Whether it has all of it."""
        with self._lock:
            return self._flush()

    def send(self, data: Buffer, /) -> int:
        return self.sendmsg((data,))

    def sendmsg(self, buffers: Sequence[Buffer], /) -> int:
        if self._broken:
            raise OSError(self._broken)
        try:
            return self._send([memoryview(buffer).cast("B") for buffer in buffers if len(buffer)])
        except BlockingIOError:
            raise
        except OSError as exc:
            self._broken = str(exc)
            raise
        except BaseException:
            # Ctrl-C between encrypting and counting: nobody knows what the other side got, and frames must not be mixed.
            self._broken = "a send over TLS was interrupted"
            raise

    def _send(self, views: list[memoryview]) -> int:
        with self._lock:
            if not self._flush():
                raise BlockingIOError
        taken = 0
        if self._owed and views:
            self._owed = 0
            taken = 1
            views = _behind(views, 1)
        while views:
            with self._lock:  # a chunk at a time, so that the reader gets its turn
                count = self._encrypt(views)
                blocked = not self._flush()
            views = _behind(views, count)
            taken += count
            if blocked:
                self._owed = 1
                taken -= 1
                break
        if not taken and self._owed:
            raise BlockingIOError
        return taken

    def _encrypt(self, views: list[memoryview]) -> int:
        """Encrypts the first of them, up to a chunk. How many bytes."""
        first = views[0][:_CHUNK]
        if len(views) > 1 and len(first) < _CHUNK // 8:  # small pieces go into a record together
            first = memoryview(b"".join(_beginning(views, _CHUNK)))
        done = 0
        try:
            while done < len(first):
                done += self._tls.write(first[done:])
        except ssl.SSLEOFError:  # the reader has seen the end of the connection
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
        self._collect()
        return done

    def _collect(self) -> None:
        """Returns what OpenSSL has written, behind what waits already."""
        if self._out.pending:
            self.spoken = True
            data = self._out.read()
            self._unsent = memoryview(bytes(self._unsent) + data if self._unsent else data)

    def _flush(self) -> bool:
        while self._unsent:
            try:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            except (BlockingIOError, InterruptedError):
                return False
        return True

    # --- receiving, one thread

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        """Reads as that of a socket; 0 at the end of the connection, announced by TLS or not: frames know when they
        are whole."""
        view = memoryview(buffer)
        count = came = 0
        got: Any
        with self._lock:
            while count < len(view):
                try:
                    got = self._tls.read(len(view) - count, view[count:])
                except ssl.SSLWantReadError:
                    self._collect()  # TLS itself may have had something to answer
                    if came > 2 * count + _READ:
                        break
                    more = self._read_more(count)
                    if not more:
                        break
                    came += more
                    continue
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    self._ended = True
                    break
                except ssl.SSLError as exc:
                    raise TlsFailed(self._explain(exc)) from exc
                if not got:
                    self._ended = True
                    break
                count += got
                self._empty = max(0, self._empty - _WORTH * got)
                if not self._more and not self._in.pending and not self._tls.pending():
                    break  # asking both OpenSSL and the kernel for nothing takes as long as a small record
        return count

    def _read_more(self, count: int) -> int:
        """Returns how much more ciphertext the kernel had. BlockingIOError when there is neither that nor anything read
        before. TlsFailed when there was enough of it with nothing in it."""
        if self._empty >= _EMPTY or len(self._unsent) > _ANSWERS:
            raise TlsFailed(
                "the other side sends no data, but messages of TLS itself (new keys, or handshakes) without an end; a "
                "monarch host does not do that"
            )
        more = self._fill(_READ if count else _EMPTY)
        if not more and not count:
            raise BlockingIOError
        return more

    def _fill(self, limit: int) -> int:
        """Gives OpenSSL what has come, up to `limit` bytes, or the end of it. 0 when nothing has."""
        scratch = _scratch.view
        try:
            size = self._sock.recv_into(scratch, limit)
        except (BlockingIOError, InterruptedError):
            return 0
        self._more = not 0 < size < limit
        if size:
            self._in.write(scratch[:size])
            self._empty += size
            return size
        self._in.write_eof()
        return 1

    def pending(self) -> bool:
        """Returns whether `recv_into` may give something although the descriptor is silent."""
        with self._lock:
            return self._ended or bool(self._in.pending) or bool(self._tls.pending())

    def beneath(self) -> socket.socket | None:
        """Returns the plain socket, for something else to go on over it; None when bytes of TLS are still here."""
        return None if self.unsent or self.pending() else self._sock

    def shutdown(self, how: int, /) -> None:
        """Shuts the plain socket down: frames and links have ends of their own, so TLS need not announce one."""
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()


def explain_alert(reason: str) -> str:
    """Says, for people, what the other side's TLS refused."""
    if "certificate required" in reason or "bad certificate" in reason:
        return (
            f"the other side refused: it wants a certificate of this side ({reason}); give certificate and private_key"
        )
    if "certificate expired" in reason:
        return f"the other side refused this side's certificate, which has expired. {_RENEW}"
    if "unknown ca" in reason or "decrypt error" in reason or "certificate" in reason:
        return f"the other side refused this side's certificate ({reason}); it has to be signed by the CA of the job"
    if "protocol version" in reason:
        return f"the other side does not speak TLS as this one does ({reason}); both need certificates, or neither"
    return f"the other side refused the TLS handshake ({reason})"


def _behind(views: list[memoryview], count: int) -> list[memoryview]:
    """Returns what is left when `count` bytes are gone."""
    for index, view in enumerate(views):
        if count < len(view):
            return [view[count:] if count else view, *views[index + 1 :]]
        count -= len(view)
    return []


def _beginning(views: list[memoryview], limit: int) -> Iterator[memoryview]:
    for view in views:
        yield view[:limit]
        limit -= len(view)
        if limit <= 0:
            return
