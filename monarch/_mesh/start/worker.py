"""A host that waits for a client: its agent serves any client that attaches, this process only sees to it that it lives
and ends.

    your process ── child ──► agent ◄── link ── the agent of a client's machine
                                └── child ──► processes of the client's meshes

The agent is a process of its own, because it has to fork and to reap, and so that nothing the program here does slows
it. It ends with this process; when the last mesh that owns the host calls `shutdown()`, both end.
"""

from __future__ import annotations

import logging
import sys

from monarch._mesh.start import agent_process, leftovers
from monarch._mesh.start.agent_process import AgentOptions
from monarch._mesh.start.credentials import Pem, credentials
from monarch._mesh.start.run_directory import make_directory
from monarch._runtime import standard_streams
from monarch._runtime.future import Future, Slot, make_future
from monarch._runtime.loop import start_thread
from monarch._wire import host_address
from monarch._wire.auth import Secret
from monarch.config import settings
from monarch.config.units import parse_duration

logger = logging.getLogger("monarch")


def run_worker_loop_forever(
    *,
    address: str,
    ca: Pem | None = None,
    private_key: Pem | None = None,
    certificate: Pem | None = None,
    secret: str | bytes | Secret | None = None,
    lease: float | str | None = None,
) -> None:
    """Serves this machine as a host at `address` and does not return: when a client that owns it calls
    `HostMesh.shutdown()`, this process exits with status 0, its `atexit` functions included.

    `address`: `tcp://host:port`, `tcp://*:port` for all interfaces, `ipc://path`, `tcp://host:fdN` for an inherited
    descriptor that is bound, `dial@bind` to listen at one and be known by the other; a name may stand before any of these
    (`name@tcp://host:port`). Clients that leave without
    a word lose their processes here (their end is noticed at once, their silence after `mesh_orphan_timeout`); the host
    waits for the next.

    Who may speak: `secret` (MONARCH_SECRET_FILE, MONARCH_SECRET) and, with `ca`, `certificate`, `private_key`, TLS: see
    `attach_to_workers`, which has to be given the same.

    `lease` (seconds, or text such as "4h"; by default the setting `worker_lease`, MONARCH_WORKER_LEASE; 0 is for ever): after
    so long without a client, counted from the start and from the moment that the last one left or was lost, the host ends as
    when it is shut down, and says so in a line on stderr.

    Raises ValueError for an address, credentials or a lease that cannot be, OSError when it cannot listen there, RuntimeError
    when the host agent is killed. Ctrl-C ends the host and everything on it.
    """
    _Worker(address, ca, certificate, private_key, secret, lease).wait()
    sys.exit(0)


def run_worker_loop_until_shutdown(
    *,
    address: str,
    ca: Pem | None = None,
    private_key: Pem | None = None,
    certificate: Pem | None = None,
    secret: str | bytes | Secret | None = None,
    lease: float | str | None = None,
) -> None:
    """Does the same as `run_worker_loop_forever`, but returns when the host was shut down, or its lease is over."""
    _Worker(address, ca, certificate, private_key, secret, lease).wait()


def start_worker_loop_forever(
    *,
    address: str,
    ca: Pem | None = None,
    private_key: Pem | None = None,
    certificate: Pem | None = None,
    secret: str | bytes | Secret | None = None,
    lease: float | str | None = None,
) -> Future[None]:
    """Does the same as `run_worker_loop_forever`, but returns as soon as it listens. The Future resolves when the host
    was shut down, and raises RuntimeError when its agent was killed; dropping it changes nothing. The host ends with
    this process."""
    worker = _Worker(address, ca, certificate, private_key, secret, lease)
    slot = Slot()

    def wait() -> None:
        try:
            worker.wait()
        except BaseException as exc:
            slot.fail(exc)
        else:
            slot.set(None)

    start_thread(wait, "monarch-worker")
    return make_future(slot)


class _Worker:
    """A host agent that was started here and listens."""

    def __init__(
        self,
        address: str,
        ca: Pem | None,
        certificate: Pem | None,
        private_key: Pem | None,
        secret: str | bytes | Secret | None,
        lease: float | str | None,
    ) -> None:
        host_address.parse(address)
        seconds = _lease(lease)
        given = credentials(ca, certificate, private_key, secret, [address])
        standard_streams.secure()
        self._directory = make_directory()
        try:
            options = AgentOptions(self._directory.path, address, worker=True, credentials=given, lease=seconds)
            self._agent, self._sock, self.prefix = agent_process.start(options, self._directory.lock)
            logger.info("serving as host %s until it is shut down", self.prefix)
        except BaseException:
            self._directory.remove()
            raise

    def wait(self) -> None:
        """Waits until it was shut down."""
        try:
            code = leftovers.reap(self._agent, self._directory.path)
        finally:  # Ctrl-C among others
            self._sock.close()  # the agent ends with this socket, its processes in order before it
            leftovers.reap(self._agent, self._directory.path)
            self._directory.remove()
        if code:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
            raise RuntimeError(
                f"the host agent of {self.prefix} (pid {self._agent.pid}) {how}; its processes ended with it"
            )


def _lease(lease: float | str | None) -> float:
    """Returns the lease in seconds. ValueError for what is not a time."""
    if lease is None:
        return settings.worker_lease()
    if isinstance(lease, str):
        try:
            return float(lease) if _is_number(lease) else parse_duration(lease)
        except ValueError as exc:
            raise ValueError(f"lease must be seconds or a duration such as '4h', got {lease!r}: {exc}") from None
    if isinstance(lease, bool) or not isinstance(lease, (int, float)) or not 0 <= lease < float("inf"):
        raise ValueError(f"lease must be seconds, 0 or more, or a duration such as '4h', got {lease!r}")
    return float(lease)


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()
