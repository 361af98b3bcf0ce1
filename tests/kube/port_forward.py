"""The server's end of a port forward: a WebSocket whose frames carry a channel in their first byte."""

from __future__ import annotations

import base64
import hashlib
import select
import socket
import struct
from http.server import BaseHTTPRequestHandler
from typing import Any

from websocket import ABNF  # comes with the official client
from websocket._abnf import frame_buffer

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455
_PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_PIECE = 1 << 16


def serve(handler: BaseHTTPRequestHandler, port: int, target: tuple[str, int]) -> None:
    """Until one side ends."""
    assert _PROTOCOL in handler.headers["sec-websocket-protocol"]
    key = handler.headers["sec-websocket-key"] + _GUID
    handler.send_response(101)
    handler.send_header("Upgrade", "websocket")
    handler.send_header("Connection", "Upgrade")
    handler.send_header("Sec-WebSocket-Protocol", _PROTOCOL)
    handler.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
    handler.end_headers()
    client = handler.connection
    for channel in (_DATA, _ERROR):  # which port each is for
        _send(client, channel, struct.pack("<H", port))
    try:
        pod = socket.create_connection(target, timeout=60)
    except OSError as error:
        _send(client, _ERROR, f"failed to connect to localhost:{port} inside namespace: {error.strerror}".encode())
        return
    with pod:
        try:
            _relay(client, pod)
        except OSError:  # either went away
            pass


def _relay(client: Any, pod: socket.socket) -> None:
    """One thread: a TLS socket is not for two."""
    frames = frame_buffer(client.recv, True)
    while True:
        ready = [client] if client.pending() else select.select([client, pod], [], [])[0]
        if client in ready:
            try:
                frame = frames.recv_frame()
            except Exception:  # the library's own, when the client is gone
                return
            if frame.opcode == ABNF.OPCODE_CLOSE:
                return
            if frame.opcode == ABNF.OPCODE_BINARY:
                assert frame.data[0] == _DATA
                pod.sendall(frame.data[1:])
        if pod in ready:
            data = pod.recv(_PIECE)
            if not data:
                client.sendall(ABNF(1, 0, 0, 0, ABNF.OPCODE_CLOSE, 0, struct.pack("!H", 1000)).format())
                return
            _send(client, _DATA, data)


def _send(client: Any, channel: int, data: bytes) -> None:
    client.sendall(ABNF(1, 0, 0, 0, ABNF.OPCODE_BINARY, 0, bytes([channel]) + data).format())
