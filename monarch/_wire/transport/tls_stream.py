"""TLS of two processes over a socket that their agents have connected, for threads that move bytes themselves.

A process holds no key of its host. Who opens a stream makes a key and a certificate for it alone (`make_pem`). Both go over
the TLS connection of the two agents, which is then given up: the two processes go on over its socket, in a session in
which each shows that certificate and takes no other.
"""

from __future__ import annotations

import datetime
import select
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from monarch._wire.frame import Buffer
from monarch._wire.transport.tls import TlsSocket, context

MISSING = "TLS between two processes needs the package cryptography where it begins: pip install 'pymonarch[tls]'"

Given = TypeVar("Given")


def make_pem() -> bytes:
    """Returns a new private key and its certificate, signed by itself. ModuleNotFoundError without `cryptography`."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(MISSING, name="cryptography") from missing
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "monarch stream")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(2000, 1, 1))  # clocks do not matter: it serves one session
        .not_valid_after(datetime.datetime(9999, 12, 31))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private + certificate.public_bytes(pem)


class TlsStream:
    """An encrypted stream with those methods of a blocking socket that streams use; no other sends or reads around TLS.

    One thread may send while another receives. After a send that took less than it was given, or raised BlockingIOError, the
    next begins with the bytes that are left (see `TlsSocket`).
    """

    def __init__(self, sock: socket.socket, pem: bytes, *, server: bool) -> None:
        self._sock = sock
        self._timeout: float | None = None
        sock.setblocking(False)
        self._tls = TlsSocket(sock, context(pem, pem, pem, server), server=server)

    def __enter__(self) -> TlsStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TlsStream over {self._tls}>"

    @property
    def family(self) -> int:
        return self._sock.family

    def fileno(self) -> int:
        return self._sock.fileno()

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self._sock.setsockopt(level, option, value)

    def settimeout(self, seconds: float | None, /) -> None:
        """Bounds each wait of a call, as that of a socket."""
        self._timeout = seconds

    def gettimeout(self) -> float | None:
        return self._timeout

    def handshake(self) -> None:
        """Waits until both sides have shown the certificate. OSError when the other has not, TimeoutError."""
        while not self._tls.handshake():
            self._wait(select.POLLOUT if self._tls.unsent else select.POLLIN)
        while not self._tls.flush():
            self._wait(select.POLLOUT)

    def sendmsg(self, buffers: Sequence[Buffer], ancillary: tuple[()] = (), flags: int = 0, /) -> int:
        return self._call(self._tls.sendmsg, buffers, select.POLLOUT, flags)

    def sendall(self, data: Buffer, /) -> None:
        left = memoryview(data)
        while left:
            left = left[self.sendmsg((left,)) :]

    def recv(self, size: int, /) -> bytes:
        data = bytearray(size)
        return bytes(data[: self.recv_into(data)])

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        return self._call(self._tls.recv_into, buffer, select.POLLIN, 0)

    def recvmsg_into(
        self, buffers: Sequence[memoryview], ancillary: int = 0, flags: int = 0, /
    ) -> tuple[int, list[Any], int, Any]:
        return self._call(self._fill, buffers, select.POLLIN, flags), [], 0, None

    def _fill(self, buffers: Sequence[memoryview]) -> int:
        count = 0
        for buffer in buffers:
            try:
                came = self._tls.recv_into(buffer)
            except OSError:
                if not count:
                    raise
                break
            count += came
            if came < len(buffer):
                break
        return count

    def pending(self) -> bool:
        """Returns whether there may be more to receive although the descriptor is silent."""
        return self._tls.pending()

    def _call(self, call: Callable[[Given], int], given: Given, events: int, flags: int) -> int:
        while True:
            try:
                return call(given)
            except BlockingIOError:
                if flags & socket.MSG_DONTWAIT:
                    raise
                self._wait(events)

    def _wait(self, events: int) -> None:
        poll = select.poll()
        poll.register(self._sock, events)
        if not poll.poll(None if self._timeout is None else self._timeout * 1000):
            raise TimeoutError("timed out")

    def shutdown(self, how: int, /) -> None:
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()
