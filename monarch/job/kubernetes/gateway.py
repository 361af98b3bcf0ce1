"""A way into the cluster for a client outside: a port of this machine, forwarded to a worker through the API server.

    client ── TCP ──► 127.0.0.1:port ── WebSocket ──► API server ──► pod

Through the official client, in threads of this process: whatever credentials it has serve, kubectl is not needed, and the
forward ends with the program that uses it. Every connection has a WebSocket of its own. One that breaks is closed at this
end too: the link between hosts dials again and goes on where it stopped.
"""

from __future__ import annotations

import socket
import ssl
import threading
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from monarch._linux import loopback_peer
from monarch._linux.descriptors import OUT_OF
from monarch._linux.locks import Lock
from monarch.job.kubernetes.api_errors import forward_refused
from monarch.job.kubernetes.kube_config import Access, KubeConfigError
from monarch.job.progress import job_logger

_PIECE = 1 << 16  # bytes read at once
_MOST = 64  # connections at a time, more are refused; a client makes one or two
_BACKLOG = 16
_BETWEEN = 0.05  # seconds between two attempts to accept, without a descriptor
_OPENING = 30.0  # seconds for each piece of the API server's answer to a request for a forward
_PROTOCOL = "v4.channel.k8s.io"
_pause = threading.Event()


@dataclass(frozen=True)
class ForwardTarget:
    """The pod and port that a forward leads to."""

    access: Access
    namespace: str
    pod: str
    port: int


class Gateway:
    """Listens from the start until `close`; may be led elsewhere meanwhile, for connections to come."""

    def __init__(self, target: ForwardTarget) -> None:
        self.target: ForwardTarget | None = target
        self._open: set[Any] = set()
        self._lock = Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="monarch-gateway", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Opens a connection and closes it: ConnectionError with the reason when the pod cannot be reached."""
        assert self.target is not None
        _PodForward(self.target).close()

    def lead_nowhere(self) -> None:
        """Refuses what comes, and ends what is open."""
        with self._lock:
            self.target = None
            ending = list(self._open)
        for end in ending:
            _shut(end)

    def close(self) -> None:
        self.lead_nowhere()
        # close() alone would not wake a thread that waits in accept().
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError as error:
                if error.errno in OUT_OF:  # it waits in the queue until there is room
                    _pause.wait(_BETWEEN)
                    continue
                return  # closed
            try:
                if loopback_peer.is_socket_ours(here):
                    threading.Thread(target=self._serve, args=(here,), name="monarch-gateway", daemon=True).start()
                    continue
                problem = "another user's program wanted in, and was refused"
            except RuntimeError as error:  # no thread is left
                problem = str(error)
            here.close()
            job_logger().debug("the way into the cluster: %s", problem)

    def _serve(self, here: socket.socket) -> None:
        with here:
            target = self.target
            if target is None:
                return
            if len(self._open) >= 2 * _MOST:
                job_logger().warning("more than %d connections through pod %s: one was refused", _MOST, target.pod)
                return
            try:
                forward = _PodForward(target)
            except ConnectionError as error:
                job_logger().warning("%s", error)
                return
            there = forward.socket
            with self._lock:
                wanted = self.target is not None
                self._open |= {here, there}
            if wanted:
                back = threading.Thread(target=_pump, args=(there, here), name="monarch-gateway", daemon=True)
                back.start()
                _pump(here, there)
                back.join()
            with self._lock:
                self._open -= {here, there}
            forward.close()


# A program can go through one host only, and says so before it uses the runtime: its way in stays as long as it does.
_gateway: Gateway | None = None
_owner = ""
_secret: str | None = None
_changing = Lock()


def held_secret() -> str | None:
    """Returns the secret that this program shows the host it goes through, which it cannot change any more; None before
    it has entered."""
    return _secret


def enter(owner: str, target: ForwardTarget, secret: str | None) -> int:
    """The port of this machine that leads to `target`, for the job `owner` until it leaves; then the next may. `secret`:
    that of the worker there. ConnectionError when the pod cannot be reached, RuntimeError while another job is in."""
    global _gateway, _owner, _secret
    with _changing:
        if _owner not in ("", owner):
            raise RuntimeError(
                f"this program reaches the cluster through a host of another job, {_owner}: kill that one first, use a "
                "program of its own for each, or make one job with all meshes"
            )
        if _gateway is None:
            _gateway = Gateway(target)
        _gateway.target = target
        _owner = owner
        _gateway.check()
        _secret = _secret or secret
        return _gateway.port


def leave(owner: str) -> None:
    """The job's hosts are gone, or not its own any more. Nothing for a job that has not entered."""
    global _owner
    with _changing:
        if _gateway is not None and _owner == owner:
            _gateway.lead_nowhere()
            _owner = ""


class _PodForward:
    """One connection to the pod's port, by the official client: a socket, a thread of its own, and a WebSocket."""

    _THREAD = "Kubernetes port forward proxy"  # how the official client calls it
    _PATIENCE = 10.0  # seconds; it closes a WebSocket within three
    _opening = Lock()

    def __init__(self, target: ForwardTarget) -> None:
        from kubernetes.stream.ws_client import PortForward

        with self._opening:
            before = set(threading.enumerate())
            self._forward = PortForward(_web_socket(target), [target.port])
            begun = set(threading.enumerate()) - before
        self._threads = [thread for thread in begun if thread.name.startswith(self._THREAD)]
        self.socket = self._forward.socket(target.port)

    def close(self) -> None:
        self.socket.close()
        for thread in self._threads:
            thread.join(self._PATIENCE)
        self._forward.websocket.shutdown()  # it is left open where the server was the first to close


def _web_socket(target: ForwardTarget) -> Any:
    """A WebSocket to the pod's port. Opened here, for the official client would follow a redirect, with the token, and wait
    for ever. ConnectionError with the reason when there is none."""
    try:
        return _opened(target, target.access)
    except ConnectionRefusedError:  # what was read when the program entered may have been replaced since
        pass
    try:
        return _opened(target, target.access.renewed())
    except KubeConfigError as error:
        raise ConnectionError(str(error)) from error


def _opened(target: ForwardTarget, access: Access) -> Any:
    """ConnectionRefusedError when the credentials are not, or no longer, good."""
    import certifi
    from kubernetes.stream.ws_client import websocket_proxycare
    from websocket import WebSocket

    configuration = access.configuration
    encryption: dict[str, Any] = {"cert_reqs": ssl.CERT_NONE}
    if configuration.verify_ssl:
        encryption = {"cert_reqs": ssl.CERT_REQUIRED, "ca_certs": configuration.ssl_ca_cert or certifi.where()}
        if configuration.assert_hostname is not None:
            encryption["check_hostname"] = configuration.assert_hostname
    for name, value in (
        ("certfile", configuration.cert_file),
        ("keyfile", configuration.key_file),
        ("server_hostname", configuration.tls_server_name),
    ):
        if value:
            encryption[name] = value
    path = f"/api/v1/namespaces/{target.namespace}/pods/{target.pod}/portforward?ports={target.port}"
    proof = [f"{given['key']}: {given['value']}" for given in configuration.auth_settings().values() if given["value"]]
    web_socket: Any = WebSocket(sslopt=encryption)
    try:
        web_socket.connect(
            configuration.host.replace("http", "ws", 1) + path,
            header=[*proof, f"sec-websocket-protocol: {_PROTOCOL}"],
            redirect_limit=0,
            timeout=_OPENING,
            **websocket_proxycare({}, configuration, "", None),
        )
        if web_socket.handshake_response.status != HTTPStatus.SWITCHING_PROTOCOLS:
            raise ConnectionError("no WebSocket")
        web_socket.settimeout(None)
        return web_socket
    except Exception as error:
        answer = web_socket.handshake_response
        words = str(error) or type(error).__name__
        if answer is not None:  # it led elsewhere
            words = f"Handshake status {answer.status} {HTTPStatus(answer.status).phrase}"
        said = forward_refused(
            f"forward a port to pod {target.pod} in namespace {target.namespace}", access.where, words
        )
        again = getattr(error, "status_code", None) == HTTPStatus.UNAUTHORIZED
    # Without what it came from, which has the whole answer.
    raise (ConnectionRefusedError if again else ConnectionError)(access.without_credentials(said))


def _pump(source: Any, target: Any) -> None:
    """Until one side ends. Then the other does too: a forward knows no half of a connection."""
    try:
        while piece := source.recv(_PIECE):
            target.sendall(piece)
    except OSError:
        pass
    _shut(source)
    _shut(target)


def _shut(end: Any) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
