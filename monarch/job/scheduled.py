"""A job whose hosts a scheduler gives: what is the same for all schedulers."""

from __future__ import annotations

import contextvars
import functools
import signal
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

import msgspec

from monarch.actor import Future, HostMesh, ReplacePolicy, attach_to_workers
from monarch.config import settings
from monarch.job.job_state import JobState
from monarch.job.job_trait import JobTrait
from monarch.job.progress import LiveLine, job_logger
from monarch.job.worker_launch import WorkerLaunch, new_secret

_GOODBYE = 15.0  # seconds that hosts get to end in order, who kill what hangs after 10, before they are taken back


class SchedulerError(RuntimeError):
    """A scheduler refused or could not be asked. The text has its own words."""


class Waiting(msgspec.Struct, frozen=True):
    """Not all hosts are there. `why`: what the scheduler says about it, for people."""

    why: str


class Ready(msgspec.Struct, frozen=True):
    """All hosts are there. `workers`: of each mesh the addresses of its workers, by rank."""

    workers: dict[str, list[str]]


class Ended(msgspec.Struct, frozen=True):
    """The hosts will not come, or are no longer the job's. `why`: in the scheduler's words."""

    why: str


Poll = Waiting | Ready | Ended


class ScheduledJob(JobTrait):
    """Hosts that a scheduler gives. A kind of scheduler says four things, `_submit`, `_poll`, `_cancel` and `_same`;
    everything else is done here: waiting with a line that says why, giving back on failure and on Ctrl-C, attaching with
    the job's own secret, keeping the job, and ending it.

    - `_submit(self, launch, client_script)`: asks for the hosts, on each of which what `launch`, a WorkerLaunch, says is to
      run; SchedulerError in the scheduler's words.
    - `_poll(self)`: one look, which gives Waiting, Ready or Ended.
    - `_cancel(self)`: gives everything back.
    - `_same(self, spec)`: whether the hosts of this job, which was kept, serve `spec`.

    A kind may set `poll_interval`, seconds between two looks (2.0); `start_timeout`, seconds that hosts may take to come
    (None: as long as the scheduler says); and `hosts_come_back`, whether the scheduler itself starts a lost host again
    (False). docs/jobs.md writes one.
    """

    poll_interval = 2.0  # seconds between two looks while hosts are awaited
    hosts_come_back = False  # whether the scheduler itself starts a host again that was lost
    start_timeout: float | None = None  # seconds that hosts may take to come; None: as long as the scheduler says

    def __init__(self) -> None:
        super().__init__()
        self._launch: WorkerLaunch | None = None
        self._met = False  # whether a program has been connected to these hosts
        self._attached: dict[str, HostMesh] = {}  # by this process
        self._spares: dict[str, int] = {}
        self._replace: ReplacePolicy | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_attached": {}}

    def use_spares(self, policy: ReplacePolicy | None = None, **spares: int) -> Self:
        """Keeps the last hosts of each of these meshes, so many, out of the mesh: they wait, and take the places of hosts
        that die, when `hosts.replace(failed=True)` is called, or with a `policy` without that. With one spare, a mesh asked
        for with 4 hosts has 3. `state` raises ValueError for a mesh that is not the job's, or has nothing but spares."""
        for name, count in spares.items():
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise ValueError(f"mesh {name!r} has one spare or more, or is not named here, got {count!r}")
        self._spares, self._replace = dict(spares), policy
        return self

    # --- what a scheduler says

    @abstractmethod
    def _submit(self, launch: WorkerLaunch, client_script: str | None) -> None:
        """Asks for the hosts, on each of which what `launch` says is to run; keeps in `self` what `_poll` and `_cancel` need.
        Bounded in time; raises SchedulerError in the scheduler's words, and then nothing is left of the order. Ctrl-C
        takes effect at its end, so what it runs has a session of its own."""

    @abstractmethod
    def _poll(self) -> Poll:
        """One look, bounded in time. SchedulerError when the scheduler cannot be asked just now."""

    @abstractmethod
    def _cancel(self) -> None:
        """Gives everything back; returns when nothing is left that the job started. Nothing when nothing is left."""

    @abstractmethod
    def _same(self, spec: Any) -> bool:
        """True if this job's hosts serve `spec`, a job of the same class."""

    def _attach(self, workers: dict[str, list[str]]) -> dict[str, HostMesh]:
        self._check_spares(workers)
        return {
            name: attach_to_workers(
                workers=addresses[: len(addresses) - self._spares.get(name, 0)],
                spares=addresses[len(addresses) - self._spares.get(name, 0) :],
                replace=self._replace,
                find_replacements=functools.partial(self._replacements, name) if self.hosts_come_back else None,
                name=name,
                **self._proof(name),
            )
            for name, addresses in workers.items()
        }

    def _proof(self, name: str) -> dict[str, Any]:
        """Returns what workers of that mesh are shown: the secret and the certificates that `attach_to_workers` takes."""
        launch = self._launch
        assert launch is not None
        return {"secret": launch.secret, **launch.tls}

    def _check_spares(self, workers: dict[str, list[str]]) -> None:
        for name, count in self._spares.items():
            if name not in workers:
                raise ValueError(f"use_spares names mesh {name!r}, and the meshes are {', '.join(workers)}")
            if count >= len(workers[name]):
                raise ValueError(f"mesh {name!r} has {len(workers[name])} hosts, and {count} of them would be spares")

    # --- its life

    def _create(self, client_script: str | None) -> None:
        lease = settings.job_lease()
        launch = self._launch = WorkerLaunch(new_secret(), lease or None, self._tls)
        self._met = False
        try:
            uninterrupted(lambda: self._submit(launch, client_script))
        except InterruptedAfterwardsError:
            interrupt = KeyboardInterrupt()
            self._give_back(interrupt)
            raise interrupt from None
        except SchedulerError as exc:  # its words are all there is to say: not where in here they were heard
            raise exc.with_traceback(None) from exc.__cause__

    def _state(self) -> JobState:
        """Waits for the hosts. What goes wrong before they have ever answered gives them back; hosts that were in use are
        kept, since they may only be out of reach."""
        try:
            meshes = self._attach(self._await_hosts().workers)
            for mesh in meshes.values():
                self._await_answers(mesh)
        except BaseException as exc:
            if not self._met:
                self._give_back(exc)
            raise
        self._met = True
        self._attached = meshes
        return JobState(meshes)

    def _replacements(self, name: str, ranks: list[int]) -> list[str]:
        """Returns where the scheduler has put these hosts of a mesh after they were lost: waits until all hosts are there
        again."""
        workers = self._await_hosts().workers[name]
        return [workers[rank] for rank in ranks]

    def _await_hosts(self) -> Ready:
        line = LiveLine(f"{type(self).__name__} waits for its hosts")
        pause = threading.Event()
        last = ""
        try:
            while True:
                try:
                    poll = self._poll()
                except SchedulerError as exc:
                    if self.start_timeout is None:
                        raise
                    poll = Waiting(str(exc))
                if isinstance(poll, Ready):
                    line.end()
                    if last:
                        job_logger().info("%s has its hosts (after %.0f s)", type(self).__name__, line.waited)
                    return poll
                if isinstance(poll, Ended):
                    raise SchedulerError(poll.why)
                last = poll.why
                if self.start_timeout is not None and line.waited >= self.start_timeout:
                    raise SchedulerError(self._too_late(last))
                line.show(last)
                pause.wait(self.poll_interval)
        finally:
            line.end()

    def _await_answers(self, mesh: HostMesh) -> None:
        """Until all hosts of the mesh have answered, or the scheduler says that they will not."""
        while True:
            asked = time.monotonic()
            try:
                result_of(mesh.initialized, self.poll_interval)
                return
            except TimeoutError:
                if time.monotonic() - asked < self.poll_interval:  # it is the mesh's own: attaching took too long
                    raise
            try:
                poll = self._poll()
            except SchedulerError:
                continue  # attaching has an end of its own
            if isinstance(poll, Ended):
                raise SchedulerError(poll.why)

    def _too_late(self, why: str) -> str:
        return f"{type(self).__name__} has no hosts after {self.start_timeout:g} s; last it was said: {why}"

    def _give_back(self, cause: BaseException) -> None:
        """Gives back what was asked for, whatever went wrong."""
        try:
            self._cancel()
        except Exception as exc:
            told = {"job_type": type(self).__name__, **self._cleanup_log_context()}
            job_logger().warning("%s could not be cancelled (%s); look for what is left: %s",
                type(self).__name__, exc, told)  # fmt: skip
        self._over()
        if isinstance(cause, KeyboardInterrupt):
            job_logger().info("interrupted: %s was cancelled", type(self).__name__)

    def can_run(self, spec: JobTrait) -> bool:
        """True if the scheduler still gives these hosts, all of them, and `spec` asks for the same. SchedulerError when it
        cannot be asked just now: a job that may be running is not given up for that."""
        if type(spec) is not type(self) or not self.active or self._tls != spec._tls or not self._same(spec):
            return False
        if self._spares != spec._spares:
            return False
        return isinstance(self._poll(), Ready)

    def _kill(self) -> None:
        """Hosts that this process has attached end in order, then the scheduler takes all of them back."""
        attached, self._attached = self._attached, {}
        for name, mesh in attached.items():
            try:
                result_of(mesh.shutdown(), _GOODBYE)
            except Exception as exc:  # the scheduler ends them
                job_logger().info("hosts of mesh %s did not end in order: %s", name, exc)
        self._cancel()


T = TypeVar("T")


def result_of(future: Future[T], timeout: float | None = None) -> T:
    """Waits as `future.get(timeout)` does; in an event loop, which waits meanwhile, without a warning of that."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or asyncio._get_running_loop() is None:
        return future.get(timeout)
    with ThreadPoolExecutor(1, "monarch-wait") as one:
        return one.submit(contextvars.copy_context().run, future.get, timeout).result()


class InterruptedAfterwardsError(Exception):
    """Ctrl-C came during the step, which has been done."""


def uninterrupted(step: Callable[[], None]) -> None:
    """Does the step as a whole: an interrupt is noted, and raised as InterruptedAfterwardsError when the step is done; so the
    step has to be bounded. What it raises itself is raised. A handler of the program's own is called after the step.

    Processes that the step starts and waits for need a session of their own: Ctrl-C goes to all of the terminal's.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        step()  # no interrupt comes here
        return
    noted: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: noted.append((number, frame)))
    try:
        step()
    finally:
        signal.signal(signal.SIGINT, handler)
    if noted and handler is signal.default_int_handler:
        raise InterruptedAfterwardsError
    if noted:
        handler(*noted[0])
