"""`enable_transport`: how hosts are to talk to each other. Processes of one host use Unix sockets whatever it says."""

from __future__ import annotations

from monarch._runtime.context import home
from monarch.config import configure, settings
from monarch.config.transport import BindSpec, ChannelTransport

_SHORT = {
    "tcp": ChannelTransport.TcpWithHostname,
    "ipc": ChannelTransport.Unix,
    "metatls": ChannelTransport.MetaTlsWithIpV6,
    "metatls-hostname": ChannelTransport.MetaTlsWithHostname,
    "tls": ChannelTransport.Tls,
}
_enabled: BindSpec | None = None


def enable_transport(transport: ChannelTransport | BindSpec | str) -> None:
    """Chooses the transport of this program, before its first use of the runtime: sets `default_transport`.

    A ChannelTransport, "tcp", "ipc", "metatls", "metatls-hostname", "tls", or a URL such as `tcp://127.0.0.1:8080`.
    The same again is a no-op at any time; a different one raises RuntimeError. ValueError for an unknown string.
    """
    global _enabled
    spec = BindSpec(_SHORT.get(transport, transport) if isinstance(transport, str) else transport)
    if spec == _enabled:
        return
    if home() is not None:
        if spec == settings.get("default_transport"):
            return
        raise RuntimeError(
            "`enable_transport()` must be called before any other calls in the monarch API. "
            f"The runtime runs with {settings.get('default_transport')}"
        )
    if _enabled is not None:
        raise RuntimeError(
            f"Only one transport type may be enabled at one time: {_enabled} is enabled, and {spec} was asked for"
        )
    configure(default_transport=spec)
    _enabled = spec
