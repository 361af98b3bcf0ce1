"""Hosts that others have started: attaching to their worker loops, and owning them."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from monarch._mesh import plugins
from monarch._mesh.meshes.host_mesh import HostMesh
from monarch._mesh.meshes.owned import HostAcks, OwnedProcs
from monarch._mesh.start import transports
from monarch._mesh.start.agent_process import Credentials
from monarch._mesh.start.credentials import Pem, credentials
from monarch._runtime.context import here
from monarch._runtime.future import All, Future, Slot, Source, once
from monarch._runtime.log_thread import log
from monarch._runtime.loop import start_thread
from monarch._runtime.proc import Proc
from monarch._runtime.remote_errors import Raw
from monarch._runtime.replies import Entry, Target
from monarch._shape.region import Shape
from monarch._shape.slice import NDSlice
from monarch._wire import host_address, os_text
from monarch._wire.address import agent_at, agent_of, host_of
from monarch._wire.auth import Secret
from monarch._wire.message import Attach, AttachedHost, Failure, ProcEnded, SetCredentials, Shutdown
from monarch._wire.peer import PeerEnded
from monarch.config import settings

logger = logging.getLogger("monarch")
_PATIENCE = 5.0  # seconds that a host which can be reached gets to answer, beyond the time for reaching it
_FAILED = "attach failed: config push failed during attach to {}: {}"


def attach_to_workers(
    *,
    workers: Sequence[str | Future[str]],
    ca: Pem | None = None,
    private_key: Pem | None = None,
    certificate: Pem | None = None,
    secret: str | bytes | Secret | None = None,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
) -> HostMesh:
    """The hosts at these addresses, where worker loops wait, as a mesh `{"hosts": n}` that this program owns.

    Returns at once and connects in the background; processes can be spawned on it meanwhile. `initialized` says when
    every host has taken this program's settings and `env` (variables for all processes that are started there from now
    on, over the worker's own environment); it raises what went wrong, at the latest after
    `mesh_attach_config_timeout`. Workers may start later than this program. A host whose name cannot be looked up is warned
    of at once, on the logger `monarch`, and tried again for as long.

    `workers`: `tcp://host:port`, `tls://host:port`, `ipc://path`, or `dial@bind`, of which `dial` is used, each with
    a name and an @ before it (`name@tcp://host:port`) or without; or Futures of these. A mesh
    with Futures is complete when the last of them is; using it waits for that.

    Who may speak: both sides show each other that they know `secret` (by default what MONARCH_SECRET_FILE or
    MONARCH_SECRET say). With `ca`, `certificate` and `private_key` (PEM files or bytes; MONARCH_TLS_CA,
    MONARCH_TLS_CERT, MONARCH_TLS_KEY) the connections are TLS and both sides show certificates of that authority.
    `ca="trust_all_connections"` asks for nothing and warns when other machines can reach the worker. ValueError when
    none of these is given, for `tls://` without certificates, and for anything that is not an address; `initialized` raises
    it for the address that a Future gives.
    """
    if isinstance(workers, str) or not isinstance(workers, Sequence):
        raise TypeError(f"workers is a sequence of addresses or Futures of them, got {workers!r}")
    if not workers:
        raise ValueError("workers is empty: a mesh has one host or more")

    def credentials_for(addresses: Sequence[str]) -> Credentials:
        return credentials(ca, certificate, private_key, secret, addresses, dialled=True)

    hosts = Workers(workers, credentials_for)
    given = credentials_for([worker for worker in workers if isinstance(worker, str)])
    session = AttachedHosts(hosts, given, dict(env or {}))
    session.begin()
    return HostMesh(hosts, Shape(["hosts"], NDSlice.new_row_major([len(workers)])), session=session)


class Workers(Sequence[str]):
    """Address prefixes of hosts; some may still be Futures, for which reading waits. `check` gets the address that a Future
    has given, as it was given, and raises when it cannot be spoken to as the others are."""

    def __init__(
        self, workers: Sequence[str | Future[str]], check: Callable[[Sequence[str]], object] = lambda addresses: None
    ) -> None:
        self._check_given = check
        self._workers = [_prefix(worker) if isinstance(worker, str) else worker for worker in workers]
        self.complete = all(isinstance(worker, str) for worker in self._workers)
        if self.complete:
            self._check()

    def __len__(self) -> int:
        return len(self._workers)

    def __getitem__(self, index: Any) -> Any:
        return self.resolve()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.resolve())

    def resolve(self) -> list[str]:
        """All of them. TimeoutError when a Future has no value after `mesh_attach_config_timeout`; whatever it raises."""
        if not self.complete:
            limit = settings.get("mesh_attach_config_timeout")
            for index, worker in enumerate(self._workers):
                if not isinstance(worker, str):
                    address = _value_of(worker, index, limit)
                    self._workers[index] = _prefix(address)
                    self._check_given([address])
            self.complete = True
            self._check()
        return self._workers  # type: ignore[return-value]

    def _check(self) -> None:
        known = list(map(str, self._workers))
        twice = sorted({worker for worker in known if known.count(worker) > 1})
        if twice:
            raise ValueError(f"a host can be in a mesh once, and these are there twice: {', '.join(twice)}")


def _value_of(worker: Future[str], index: int, limit: float) -> str:
    try:
        found = worker.get(limit)
    except TimeoutError:
        raise TimeoutError(
            f"the address of worker {index} was not known within {limit:g} s (setting mesh_attach_config_timeout)"
        ) from None
    if not isinstance(found, str):
        raise TypeError(f"the Future of worker {index} gave {found!r}, which is not an address")
    return found


def _prefix(worker: str) -> str:
    return host_address.parse_dial(worker).prefix


class AttachedHosts:
    """See `host_mesh.Session`."""

    def __init__(self, hosts: Workers, given: Credentials, env: dict[str, str]) -> None:
        self._attached = Slot()
        self._hosts = hosts
        self._credentials = given
        self._env = env
        self._spawned: list[OwnedProcs] = []
        self._living: HostAcks | None = None  # those that have not ended; None until all addresses are known
        self._ending: Source | None = None
        self._ended = ""
        self._lock = threading.Lock()
        self._proc = here()

    @property
    def attached(self) -> Source:
        return self._attached

    def begin(self) -> None:
        if self._hosts.complete:
            self._attach()
        else:
            start_thread(self._attach, "monarch-attach")

    def _attach(self) -> None:
        try:
            hosts = self._hosts.resolve()
            proc = self._proc
            self._living = HostAcks(hosts)
            proc.ports.add(self._living)
            trust = SetCredentials(hosts, msgspec.msgpack.encode(settings.snapshot()))
            proc.post(agent_of(proc.address), trust, msgspec.msgpack.encode(self._credentials))
            attaching = Attaching(proc, hosts)
            attaching.ask(self._env)
        except BaseException as exc:
            self._attached.fail(exc)
            return
        attaching.on_ready(lambda: self._done(attaching))

    def _done(self, attaching: Attaching) -> None:
        try:
            self._attached.set(attaching.value())
        except BaseException as exc:
            self._attached.fail(exc)

    # --- the end

    def check(self) -> None:
        if self._ended:
            raise RuntimeError(f"HostMesh has already been {self._ended}")

    def spawned(self, owned: OwnedProcs) -> None:
        with self._lock:
            self._spawned.append(owned)

    def stop(self) -> Source:
        with self._lock:
            self.check()
            self._ended = "stopped"
            spawned = list(self._spawned)
        return All([owned.stop("its host mesh was stopped") for owned in spawned])

    def shutdown(self) -> Source:
        """Every host's agent says goodbye when it has stopped its processes. A host that ended before is left alone: another
        may have taken its address."""
        with self._lock:
            if self._ended == "shut down":
                self.check()
            self._ended = "shut down"
            spawned = list(self._spawned)
        for owned in spawned:
            owned.stop("its host mesh was shut down")
        done = Slot()
        if self._living is not None:
            self._shut_down(done)
        else:
            self._attached.on_ready(lambda: self._shut_down(done))
        return done

    def _shut_down(self, done: Slot) -> None:
        living = self._living
        if living is None:  # no address was ever known
            done.set(None)
            return
        living.on_ready(lambda: done.set(None))
        hosts = [host_of(address) for address in living.left()]
        passing = [host for host in hosts if host == transports.gateway()]
        others = HostAcks(host for host in hosts if host not in passing)
        self._proc.ports.add(others)
        self._order(others.left())
        # Last, what is said to the others and comes from them goes through it.
        others.on_ready(once(lambda: self._order([agent_at(host) for host in passing])))

    def _order(self, addresses: Sequence[str]) -> None:
        order = Shutdown(settings.get("mesh_terminate_timeout"))
        for address in addresses:
            try:
                self._proc.post(address, order)
            except PeerEnded as exc:  # it has ended just now, which those who wait are told
                self._proc.ports.process_ended(exc.why)


class Attaching(Entry):
    """Waits until every host has answered Attach."""

    __slots__ = ("_error", "_facts", "_proc")

    def __init__(self, proc: Proc, hosts: Sequence[str]) -> None:
        super().__init__(Target("attach_to_workers", [agent_at(host) for host in hosts], _failure_of))
        self._proc = proc
        self._facts: list[AttachedHost | None] = [None] * len(hosts)
        self._error: BaseException | None = None

    def ask(self, env: dict[str, str]) -> None:
        proc, config = self._proc, msgspec.msgpack.encode(settings.snapshot())
        number = proc.ports.add(self)
        self.expire_after(proc, settings.get("mesh_attach_config_timeout") + _PATIENCE)
        assert self.target is not None
        for rank, address in enumerate(self.target.addresses):
            if address in proc.suspected:
                self.suspected(address, proc.suspected[address])
            try:
                proc.post(address, Attach(config, os_text.encode(env), number, rank))
            except PeerEnded as exc:
                self.fail(_failure_of(address, exc.why))

    def receive(self, raw: Raw) -> None:
        self._facts[raw[0]] = msgspec.msgpack.decode(raw[2], type=AttachedHost)
        if all(facts is not None for facts in self._facts):
            self.close()
            self.set_ready()

    def unanswered(self) -> list[int]:
        return [rank for rank, facts in enumerate(self._facts) if facts is None]

    def suspected(self, address: str, why: str) -> None:
        assert self.target is not None
        rank = self.target.addresses.index(address)
        if why and self._facts[rank] is None:
            count = len(self._facts)
            log(logger, logging.WARNING, "host %s (rank %d of %d in the mesh of attach_to_workers) cannot be reached yet: %s",
                host_of(address), rank, count, why)  # fmt: skip

    def fail(self, failure: Failure) -> None:
        self.give_up(RuntimeError(failure.report))

    def give_up(self, error: BaseException) -> None:
        if not self.ready:
            self._error = self._late() if isinstance(error, TimeoutError) else error
            self.close()
            self.set_ready()

    def _late(self) -> RuntimeError:
        assert self.target is not None
        silent = ", ".join(host_of(self.target.addresses[rank]) for rank in self.unanswered())
        limit = settings.get("mesh_attach_config_timeout")
        why = f"it did not answer within {limit:g} s (setting mesh_attach_config_timeout)"
        return RuntimeError(_FAILED.format(silent, why))

    def value(self) -> list[AttachedHost | None]:
        if self._error is not None:
            raise self._error
        return self._facts


def _failure_of(address: str, ended: ProcEnded) -> Failure:
    return Failure(_FAILED.format(host_of(address), ended.detail))


# --- hosts for trying things out


_started: list[Any] = []  # agents of `two_local_hosts`, and the sockets that keep them alive


def _end_started() -> None:
    """At exit: after the client, whose processes would seem to be lost with them."""
    from monarch._mesh.start import leftovers

    plugins.end_client(_PATIENCE)
    while _started:
        agent, sock, directory = _started.pop()
        sock.close()
        leftovers.reap(agent, directory.path)
        directory.remove()


def hosts_from_config(name: str) -> HostMesh:
    """The mesh `name` of the job that this project's file describes (`monarch.job.hosts_from_config`); without a file that
    speaks of jobs, two hosts on this machine, `{"hosts": 2}`, which end with this program."""
    return plugins.load("job.project_file").hosts_from_config(name)  # type: ignore[no-any-return]


def two_local_hosts(name: str) -> HostMesh:
    """Two hosts on this machine, as a mesh `{"hosts": 2}` called `name`. They end with this program."""
    from monarch._mesh.start import agent_process
    from monarch._mesh.start.run_directory import make_directory

    given = Credentials(Secret.generate().reveal())
    workers = []
    if not _started:
        atexit.register(_end_started)
    for _ in range(2):
        directory = make_directory()
        where = f"ipc://{directory.path}/host"
        options = agent_process.AgentOptions(directory.path, where, worker=True, credentials=given)
        agent, sock, prefix = agent_process.start(options, directory.lock)
        _started.append((agent, sock, directory))
        workers.append(prefix)
    return attach_to_workers(workers=workers, secret=given.secret, name=name)
