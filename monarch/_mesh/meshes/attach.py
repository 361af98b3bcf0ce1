"""Hosts that others have started: attaching to their worker loops, and owning them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from monarch._linux.locks import Lock
from monarch._linux.maker import at_exit
from monarch._mesh import plugins
from monarch._mesh.failures.replace_policy import ReplacePolicy
from monarch._mesh.meshes.attaching import PATIENCE, Attaching
from monarch._mesh.meshes.host_mesh import HostMesh
from monarch._mesh.meshes.host_slots import HostSlots
from monarch._mesh.meshes.owned import HostAcks, OwnedProcs
from monarch._mesh.meshes.replacer import AttachedMeshes, Find, HostReplacer
from monarch._mesh.start import transports
from monarch._mesh.start.agent_process import Credentials
from monarch._mesh.start.credentials import Pem, credentials
from monarch._runtime.context import here
from monarch._runtime.future import All, Future, Slot, Source, once
from monarch._runtime.log_thread import log
from monarch._runtime.loop import start_thread
from monarch._shape.region import Shape
from monarch._shape.slice import NDSlice
from monarch._wire import host_address
from monarch._wire.address import agent_at, agent_of, host_of
from monarch._wire.auth import Secret
from monarch._wire.message import HostReplaced, SetCredentials, Shutdown
from monarch._wire.peer import PeerEnded
from monarch.config import settings

logger = logging.getLogger("monarch")


def attach_to_workers(
    *,
    workers: Sequence[str | Future[str]],
    ca: Pem | None = None,
    private_key: Pem | None = None,
    certificate: Pem | None = None,
    secret: str | bytes | Secret | None = None,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    spares: Sequence[str] = (),
    replace: ReplacePolicy | None = None,
    find_replacements: Find | None = None,
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

    `spares`: further workers, that take the places of hosts that die: see `HostMesh.replace`. They are attached as well, and
    wait; what ends the mesh's worker loops (`shutdown`) ends theirs. `replace`: hosts that die are replaced without the
    program (ReplacePolicy). `find_replacements`: a function of the ranks that were lost, which gives the workers that take
    their places before spares do; it may take its time.

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
    if isinstance(spares, str) or not isinstance(spares, Sequence):
        raise TypeError(f"spares is a sequence of addresses, got {spares!r}")

    def credentials_for(addresses: Sequence[str]) -> Credentials:
        return credentials(ca, certificate, private_key, secret, addresses, dialled=True)

    hosts = Workers(workers, credentials_for)
    given = credentials_for([*(worker for worker in workers if isinstance(worker, str)), *spares])
    session = AttachedHosts(hosts, given, dict(env or {}), spares, replace, find_replacements)
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
            limit = settings.mesh_attach_config_timeout()
            for index, worker in enumerate(self._workers):
                if not isinstance(worker, str):
                    address = _value_of(worker, index, limit)
                    self._workers[index] = _prefix(address)
                    self._check_given([address])
            self.complete = True
            self._check()
        return self._workers  # type: ignore[return-value]

    def admit(self, worker: str) -> str:
        """The prefix of one that may take a place here. Raises what is wrong with it."""
        prefix = _prefix(worker)
        self._check_given([worker])
        return prefix

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
    """The hosts that a program has attached and owns."""

    def __init__(
        self,
        hosts: Workers,
        given: Credentials,
        env: dict[str, str],
        spares: Sequence[str] = (),
        policy: ReplacePolicy | None = None,
        find: Find | None = None,
    ) -> None:
        self._find = find
        self._attached = Slot()
        self._hosts = hosts
        self._credentials = given
        self._env = env
        self._spawned: list[OwnedProcs] = []
        self._spares = [hosts.admit(spare) for spare in spares]
        self._policy = policy
        self._replacer: HostReplacer | None = None  # None until all addresses are known
        self._ending: Source | None = None
        self._ended = ""
        self._lock = Lock()
        self._proc = here()

    @property
    def ended(self) -> str:
        """Returns how the program has ended it; "" while it goes on."""
        return self._ended

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
            _check_names(hosts, proc.mesh.attached.moves())
            self._replacer = HostReplacer(
                proc, self._slots(hosts), self._env, self._policy, self._hosts.admit, self._find
            )
            known: AttachedMeshes = proc.mesh.attached
            known.add(self._replacer)
            moves = known.moves()
            trust = SetCredentials([*hosts, *self._spares], msgspec.msgpack.encode(settings.snapshot()))
            proc.post(agent_of(proc.address), trust, msgspec.msgpack.encode(self._credentials))
            attaching = Attaching(proc, hosts)
            attaching.ask(self._env, moves)
            for spare in self._spares:
                self._attach_spare(spare, moves)
        except BaseException as exc:
            self._attached.fail(exc)
            return
        attaching.on_ready(lambda: self._done(attaching))

    def _slots(self, hosts: list[str]) -> HostSlots:
        twice = [spare for spare in self._spares if spare in hosts or self._spares.count(spare) > 1]
        if twice:
            raise ValueError(f"a spare is not in the mesh and is given once, which {twice[0]} is not")
        return HostSlots(hosts, self._spares)

    def _attach_spare(self, spare: str, moves: Sequence[HostReplaced]) -> None:
        attaching = Attaching(self._proc, [spare])
        attaching.ask(self._env, moves)

        def done() -> None:
            try:
                (facts,) = attaching.value()
                if self._replacer is not None and facts is not None:
                    self._replacer.spare_ready(spare, facts.agent)
            except Exception as exc:
                if not self._ended and self._proc.closed is None:
                    log(logger, logging.WARNING, "the spare %s cannot be reached: %s", spare, exc)

        attaching.on_ready(done)

    def _done(self, attaching: Attaching) -> None:
        try:
            found = attaching.value()
            if self._replacer is not None:
                agents = {
                    host: facts.agent for host, facts in zip(self._hosts, found, strict=True) if facts is not None
                }
                self._replacer.attached(agents)
            self._attached.set(found)
        except BaseException as exc:
            self._attached.fail(exc)

    # --- replacing

    def lost(self) -> list[int]:
        """The ranks of the hosts that have died."""
        return [] if self._replacer is None else self._replacer.lost()

    def replace(self, ranks: Sequence[int] | None, workers: Sequence[str] | Find | None) -> Source:
        """Replaces hosts, as `HostMesh.replace` says."""
        self.check()
        self._hosts.resolve()
        if self._replacer is None:
            self._attached.wait(None)
            self._attached.value()
        assert self._replacer is not None
        return self._replacer.replace(ranks, workers)

    # --- the end

    def check(self) -> None:
        if self._ended:
            raise RuntimeError(f"HostMesh has already been {self._ended}")

    def spawned(self, owned: OwnedProcs) -> None:
        with self._lock:
            self._spawned = [*(other for other in self._spawned if not other.gone), owned]
            ended = self._ended
        if ended:  # while its processes were asked for
            owned.stop(f"its host mesh was {ended}")
            return
        if self._replacer is not None:
            owned.preload_on(self._replacer.spares())

    def stop(self) -> Source:
        with self._lock:
            self.check()
            self._ended = "stopped"
            spawned = list(self._spawned)
        if self._replacer is not None:
            self._replacer.close(self._ended)
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
        if self._replacer is not None:
            self._shut_down(done)
        else:
            self._attached.on_ready(lambda: self._shut_down(done))
        return done

    def _shut_down(self, done: Slot) -> None:
        if self._replacer is None:  # no address was ever known
            done.set(None)
            return
        hosts = self._replacer.close(self._ended)
        living = HostAcks(hosts)
        self._proc.ports.add(living)
        living.on_ready(lambda: done.set(None))
        passing = [host for host in hosts if host == transports.gateway()]
        others = HostAcks(host for host in hosts if host not in passing)
        self._proc.ports.add(others)
        self._order(others.left(), hosts)
        # Last, what is said to the others and comes from them goes through it.
        others.on_ready(once(lambda: self._order([agent_at(host) for host in passing], hosts)))

    def _order(self, addresses: Sequence[str], agents: Mapping[str, str]) -> None:
        for address in addresses:
            try:
                self._proc.post(address, Shutdown(settings.mesh_terminate_timeout(), agents[host_of(address)]))
            except PeerEnded as exc:  # it has ended just now, which those who wait are told
                self._proc.ports.process_ended(exc.why)


def _check_names(hosts: Sequence[str], moves: Sequence[HostReplaced]) -> None:
    moved = {told.host: told.at for told in moves if told.at != told.host}
    for host in hosts:
        if host in moved:
            raise ValueError(
                f"{host} is the name under which this program reaches {moved[host]}, which has taken the place of that host "
                f"in a mesh: attach it by another of its names, such as its IP address"
            )


# --- hosts for trying things out


_started: list[Any] = []  # agents of `two_local_hosts`, and the sockets that keep them alive


def _end_started() -> None:
    """At exit: after the client, whose processes would seem to be lost with them."""
    from monarch._mesh.start import leftovers

    plugins.end_client(PATIENCE)
    while _started:
        agent, sock, directory = _started.pop()
        sock.close()
        leftovers.reap(agent, directory.path)
        directory.remove()


def hosts_from_config(name: str) -> HostMesh:
    """The mesh `name` of the job that this project's file describes (`monarch.job.hosts_from_config`); without a file that
    speaks of jobs, two hosts on this machine, `{"hosts": 2}`, which end with this program."""
    return plugins.outer("job.hosts_from_config")(name)  # type: ignore[no-any-return]


def two_local_hosts(name: str) -> HostMesh:
    """Returns two hosts on this machine, as a mesh `{"hosts": 2}` called `name`. They end with this program."""
    return local_hosts(name, 2)


def local_hosts(name: str, count: int) -> HostMesh:
    """Returns hosts on this machine, as a mesh `{"hosts": count}` called `name`. They end with this program."""
    from monarch._mesh.start import agent_process
    from monarch._mesh.start.run_directory import make_directory

    given = Credentials(Secret.generate().reveal())
    workers = []
    if not _started:
        at_exit(_end_started)
    for _ in range(count):
        directory = make_directory()
        where = f"ipc://{directory.path}/host"
        options = agent_process.AgentOptions(directory.path, where, worker=True, credentials=given)
        agent, sock, prefix = agent_process.start(options, directory.lock)
        _started.append((agent, sock, directory))
        workers.append(prefix)
    return attach_to_workers(workers=workers, secret=given.secret, name=name)
