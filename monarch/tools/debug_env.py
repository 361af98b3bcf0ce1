"""The address of a program's debugger, as the environment says."""

from __future__ import annotations

import os

__all__ = ["get_debug_server_host", "get_debug_server_port", "get_debug_server_protocol"]

_HOST, _PORT, _PROTOCOL = "MONARCH_DEBUG_SERVER_HOST", "MONARCH_DEBUG_SERVER_PORT", "MONARCH_DEBUG_SERVER_PROTOCOL"


def get_debug_server_host() -> str:
    """MONARCH_DEBUG_SERVER_HOST, by default this machine only."""
    return os.environ.get(_HOST) or "localhost"


def get_debug_server_port() -> int:
    """MONARCH_DEBUG_SERVER_PORT, by default 27000. ValueError when it is not a port."""
    text = os.environ.get(_PORT) or "27000"
    if not text.isdecimal() or int(text) > 65535:
        raise ValueError(f"{_PORT} is a port from 0 to 65535, got {text!r}")
    return int(text)


def get_debug_server_protocol() -> str:
    """Returns MONARCH_DEBUG_SERVER_PROTOCOL, by default tcp."""
    return os.environ.get(_PROTOCOL) or "tcp"
