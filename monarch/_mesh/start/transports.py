"""`enable_transport`, `attach`: how other hosts reach this program, and this program them. Processes of one host use Unix
sockets whatever they say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch._runtime.context import home
from monarch.config import configure, settings
from monarch.config.transport import BindSpec, ChannelTransport

if TYPE_CHECKING:
    from monarch._mesh.start.agent_process import Credentials
    from monarch._mesh.start.credentials import Pem
    from monarch._wire.auth import Secret

_SHORT = {
    "tcp": ChannelTransport.TcpWithHostname,
    "ipc": ChannelTransport.Unix,
    "metatls": ChannelTransport.MetaTlsWithIpV6,
    "metatls-hostname": ChannelTransport.MetaTlsWithHostname,
    "tls": ChannelTransport.Tls,
}
_enabled: BindSpec | None = None
_gateway = ""
_proof: Credentials | None = None  # what shows the gateway who we are


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
        if spec == settings.default_transport():
            return
        raise RuntimeError(
            "`enable_transport()` must be called before any other calls in the monarch API. "
            f"The runtime runs with {settings.default_transport()}"
        )
    if _enabled is not None:
        raise RuntimeError(
            f"Only one transport type may be enabled at one time: {_enabled} is enabled, and {spec} was asked for"
        )
    configure(default_transport=spec)
    _enabled = spec


def attach(
    address: str,
    *,
    ca: Pem | None = None,
    private_key: Pem | None = None,
    certificate: Pem | None = None,
    secret: str | bytes | Secret | None = None,
) -> None:
    """Sends everything to other hosts through the worker that listens at `address` (`ipc://path`, `tcp://host:port`), as is
    needed where only that one can be reached. `this_host()` still is this machine.

    Who may speak: as for `attach_to_workers`, from the arguments or the environment. A worker that is also one of the hosts
    of a mesh is spoken to as the rest of the mesh.

    To be called before this program first uses the runtime: RuntimeError afterwards. The same address again is a no-op;
    another one raises RuntimeError. ValueError for anything that is not the address of a worker, and for a `tls://` address
    without certificates (MONARCH_TLS_CA, MONARCH_TLS_CERT, MONARCH_TLS_KEY).
    """
    global _gateway, _proof
    from monarch._mesh.start.credentials import check_plain, credentials
    from monarch._wire.host_address import parse_dial  # for the few programs that need it

    prefix = parse_dial(address).prefix
    proof = credentials(ca, certificate, private_key, secret, [])
    if not proof.ca:
        check_plain([address])
    if prefix == _gateway:
        return
    if _gateway:
        raise RuntimeError(
            f"this program is attached through {_gateway} already, and cannot be through {prefix} as well"
        )
    if home() is not None:
        raise RuntimeError(
            "the client was initialized without a remote attachment: call attach() before any other use of monarch"
        )
    _gateway, _proof = prefix, proof


def gateway() -> str:
    """The prefix given to `attach`, or ""."""
    return _gateway


def gateway_credentials() -> Credentials | None:
    """Returns what shows the gateway who we are; None when nothing does."""
    return _proof if _proof is not None and (_proof.secret or _proof.ca) else None


_ANY = {
    ChannelTransport.TcpWithHostname: "tcp://*:0",
    ChannelTransport.TcpWithLocalhost: "tcp://127.0.0.1:0",
    ChannelTransport.Tls: "tls://*:0",
    ChannelTransport.MetaTlsWithHostname: "tls://*:0",
    ChannelTransport.MetaTlsWithIpV6: "tls://*:0",
}


def listens_at() -> str:
    """Returns where the agent of this machine is to listen, by the setting `default_transport`; "" nowhere: other hosts
    reach it over the connections that it makes itself."""
    spec = BindSpec(settings.default_transport())
    if spec.address is not None and spec.transport is not ChannelTransport.Local:
        return spec.address
    return _ANY.get(spec.transport, "")
