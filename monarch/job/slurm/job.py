"""Jobs on Slurm: one order to sbatch for all meshes, a worker on each node.

job = SlurmJob({"trainers": 4}, partition="gpu", gpus_per_node=8, time_limit="04:00:00")
trainers = job.state().trainers
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import monarch.job.slurm.script as slurm_script
from monarch.actor import HostMesh, attach
from monarch.job.batch import keep_for_client
from monarch.job.job_state import JobState
from monarch.job.log_file import end_of
from monarch.job.names import BATCH_JOB
from monarch.job.progress import job_logger
from monarch.job.scheduled import Ended, Poll, Ready, ScheduledJob, SchedulerError, Waiting
from monarch.job.slurm import slurm_commands
from monarch.job.slurm.arguments import ip_address, lines, options, outside_jobs, share
from monarch.job.slurm.batch import client_command
from monarch.job.slurm.script import HetJobComponent, SlurmRequest
from monarch.job.slurm.text import ORDERLY, JobRow
from monarch.job.slurm.watch import Guard, watch
from monarch.job.worker_launch import WorkerLaunch

CURRENT = "current"

_ENDING = 40.0  # seconds that a cancelled job gets to be gone: Slurm kills after KillWait, which is 30 s by default
_LOOK = 0.25  # seconds between two looks while it ends
_SOON, _OFTEN, _SELDOM = 10.0, 0.5, 2.0  # for so many seconds a new job is looked at often, then seldom
_PATIENCE = 600.0  # seconds that the controller may be silent while a job waits in the queue
_LOG_READ = 64 << 10  # bytes read of the end of a log
_TOLD = 12  # lines of a log that an error quotes
_PLACE_EVERY = 10.0  # seconds between two questions for the place in the queue: they cost the controller more


class SlurmJob(ScheduledJob):
    """Hosts that Slurm gives: of each mesh in `meshes` so many nodes, in order of declaration.

    One script on sbatch's stdin asks for all of them; workers listen at `monarch_port` of each node. The job's secret travels
    in sbatch's environment, which Slurm shows to the job's user alone. Nodes go on when one is lost, and a job is never
    requeued: the program decides what to do then.

    `python_exe`: the interpreter on the nodes, with this package. `slurm_args`: further options of sbatch, each as one word
    that begins with "-". `ntasks_per_node`, `time_limit` ("04:00:00"), `gpus_per_node`, `cpus_per_task`, `mem`, `exclusive`,
    `account`, `qos`: sbatch's options of these names; whatever they are, one worker a node has all that the job gets there.
    `partition`: for all meshes, or by mesh (`{"trainers": "gpu", "actors": "cpu"}`), which makes a heterogeneous job: all
    start together. `log_dir`: for what the workers write, files `slurm_<id>_<name>.out` and `.err`; by default they are in
    the working directory, and `kill` removes them if all went well. `job_start_timeout`: seconds.

    `prologue`: lines of shell before the workers start ("module load cuda"). `container_image`, `container_mounts`: for srun,
    where the cluster has a plugin for them. `srun_args`: further options of srun, words that begin with "-".

    `allocation`: "current" (SLURM_JOB_ID, inside salloc or sbatch) or the id of a job of yours: its nodes are used instead of
    new ones, and `kill` leaves them to it. `bind_to`: an IP address at which workers listen, "0.0.0.0" for all; the
    default is the one that the node's name has. `out_of_cluster`: this program reaches the first host only, and others
    through it; `attach_to`: the same through the worker at that address.
    """

    def __init__(
        self,
        meshes: Mapping[str, int],
        python_exe: str = "python",
        slurm_args: Sequence[str] = (),
        monarch_port: int = 22222,
        job_name: str = "monarch_job",
        ntasks_per_node: int = 1,
        time_limit: str | None = None,
        partition: str | Mapping[str, str] | None = None,
        log_dir: str | None = None,
        exclusive: bool = True,
        gpus_per_node: int | str | None = None,
        cpus_per_task: int | None = None,
        mem: str | None = None,
        job_start_timeout: float | None = None,
        account: str | None = None,
        qos: str | None = None,
        out_of_cluster: bool = False,
        attach_to: str | None = None,
        bind_to: str | None = None,
        *,
        prologue: Sequence[str] = (),
        container_image: str | None = None,
        container_mounts: Sequence[str] = (),
        srun_args: Sequence[str] = (),
        allocation: str | int | None = None,
    ) -> None:
        super().__init__()
        self._meshes: dict[str, int] = {}
        self._partitions: dict[str, str] = {}
        self._partition = partition if isinstance(partition, str) else None
        self._python_exe = python_exe
        self._slurm_args = options("slurm_args", slurm_args)
        self._srun_args = options("srun_args", srun_args)
        if not 1 <= monarch_port <= 65535:
            raise ValueError(f"monarch_port is a number from 1 to 65535, got {monarch_port!r}")
        self._port = monarch_port
        self._job_name = job_name
        self._ntasks_per_node = ntasks_per_node
        self._time_limit = time_limit
        self._log_dir = log_dir
        self._exclusive = exclusive
        self._gpus_per_node = gpus_per_node
        self._cpus_per_task = cpus_per_task
        self._mem = mem
        self.start_timeout = job_start_timeout
        self._account = account
        self._qos = qos
        self._out_of_cluster = out_of_cluster
        self._attach_to = attach_to
        self._bind_to = ip_address(bind_to)
        self._prologue = lines(prologue)
        self._container_image = container_image
        self._container_mounts = tuple(container_mounts)
        self._allocation = None if allocation is None else str(allocation)
        for name, nodes in meshes.items():
            self.add_mesh(name, nodes)
        if isinstance(partition, Mapping):
            if strangers := sorted(partition.keys() - self._meshes.keys()):
                raise ValueError(
                    f"partition names {', '.join(strangers)}, and the meshes are {', '.join(self._meshes)}"
                )
            self._partitions |= partition
        if not exclusive and self._partition is not None and isinstance(gpus_per_node, int) and cpus_per_task is None:
            _, self._cpus_per_task, self._mem = share(
                ntasks_per_node, gpus_per_node // ntasks_per_node or 1, self._partition
            )

        self._job_id: str | None = None
        self._step: str | None = None  # the name of our step in an allocation that is not ours
        self._logs: list[str] = []  # this job's files
        self._looked_at_queue = 0.0
        self._place: int | None = None
        self._ours = False  # whether this process has submitted it
        self._asked_at: float | None = None  # when, by this process's clock
        self._watched: threading.Event | None = None
        self._awaits = False
        self._silent_since: float | None = None  # when the controller last stopped answering, by this process's clock

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {
            "_ours": False,
            "_asked_at": None,
            "_watched": None,
            "_awaits": False,
            "_silent_since": None,
        }

    def add_mesh(self, name: str, num_nodes: int, partition: str | None = None) -> None:
        """One more mesh, before the job is started."""
        if self.active:
            raise RuntimeError("the job is running: meshes are added before it is started")
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"{name!r} is not a name of a mesh")
        if not isinstance(num_nodes, int) or isinstance(num_nodes, bool) or num_nodes < 1:
            raise ValueError(f"mesh {name!r} has one node or more, got {num_nodes!r}")
        self._meshes[name] = num_nodes
        if partition is not None:
            self._partitions[name] = partition

    def share_node(self, tasks_per_node: int, gpus_per_task: int, partition: str) -> None:
        """Asks for a share of each node: as many processors and as much memory as belong to these devices in `partition`.
        Takes the package clusterscope, which asks the cluster; RuntimeError without it."""
        self._ntasks_per_node, self._cpus_per_task, self._mem = share(tasks_per_node, gpus_per_task, partition)
        self._exclusive = False
        self._partition = partition

    # --- asking

    def _submit(self, launch: WorkerLaunch, client_script: str | None) -> None:
        if not self._meshes:
            raise ValueError("the job has no meshes: give some, or add_mesh")
        request = self._request(launch)
        self._ours = client_script is None
        self._asked_at = time.monotonic()
        self._place, self._looked_at_queue = None, 0.0
        if self._allocation is not None:
            if client_script is not None:
                raise RuntimeError(
                    "an allocation that is there runs no batch-mode scripts: run the client in it yourself"
                )
            self._start_in_allocation(request, launch)
            return
        if "SLURM_JOB_ID" in os.environ:
            job_logger().info(
                "This program runs in Slurm job %s; new nodes are asked for. SlurmJob(allocation='current') uses that job's",
                os.environ["SLURM_JOB_ID"],
            )
        client = None
        if client_script is not None:
            client = client_command(client_script, self._python_exe)
            keep_for_client(self)
        environment = outside_jobs(os.environ) | launch.environment()
        self._job_id = slurm_commands.submit(slurm_script.script(request, client), environment)
        self._logs = [request.log(self._job_id, stream) for stream in ("out", "err")]
        job_logger().info("Submitted Slurm job %s; what its workers write goes to %s", self._job_id, self._logs[1])

    def _request(self, launch: WorkerLaunch) -> SlurmRequest:
        log_dir = os.path.abspath(self._log_dir or os.getcwd())
        Path(log_dir).mkdir(parents=True, exist_ok=True)
        return SlurmRequest(
            components=self._components_of(),
            job_name=f"{self._job_name}_{os.getpid()}",
            python_exe=self._python_exe,
            port=self._port,
            scheme=launch.scheme,
            log_dir=log_dir,
            ntasks_per_node=self._ntasks_per_node,
            time_limit=self._time_limit,
            gpus_per_node=self._gpus_per_node,
            cpus_per_task=self._cpus_per_task,
            mem=self._mem,
            exclusive=self._exclusive,
            account=self._account,
            qos=self._qos,
            slurm_args=self._slurm_args,
            bind_to=self._bind_to,
            prologue=self._prologue,
            container_image=self._container_image,
            container_mounts=self._container_mounts,
            srun_args=self._srun_args,
        )

    def _components_of(self) -> tuple[HetJobComponent, ...]:
        """One for all meshes when they are in the same partition, else one for each."""
        wanted = {name: self._partitions.get(name, self._partition) for name in self._meshes}
        if len(set(wanted.values())) == 1 or self._allocation is not None:
            return (HetJobComponent(sum(self._meshes.values()), next(iter(wanted.values()))),)
        return tuple(HetJobComponent(nodes, wanted[name]) for name, nodes in self._meshes.items())

    def _start_in_allocation(self, request: SlurmRequest, launch: WorkerLaunch) -> None:
        """A step of ours in a job that is there. It ends by its name; the srun that holds it outlives this process."""
        job = self._allocation_id()
        rows = slurm_commands.look(job)
        if not rows or not rows[0].running:
            raise SchedulerError(
                f"Slurm job {job} is not running: {rows[0].why() if rows else 'Slurm does not know it'}"
            )
        there = slurm_commands.host_names(rows[0].nodes)
        wanted = sum(self._meshes.values())
        if len(there) < wanted:
            raise SchedulerError(
                f"Expected {wanted} nodes but got {len(there)}. Slurm job {job} has only {', '.join(there)}"
            )
        hosts = there[:wanted]
        self._job_id = job
        self._step = f"monarch_{uuid.uuid4().hex[:12]}"
        options = [f"--jobid={job}", f"--job-name={self._step}", f"--nodelist={','.join(hosts)}"]
        command = slurm_script.srun(request, None, wanted, options)
        environment = outside_jobs(os.environ) | launch.environment() | {slurm_script.HOSTS: " ".join(hosts)}
        log = request.log(f"{job}_{self._step}", "err")
        self._logs = [log]
        process = slurm_commands.run_detached(command, environment, log)
        threading.Thread(target=process.wait, name="monarch-srun", daemon=True).start()
        self._hosts = hosts
        job_logger().info("Workers start in Slurm job %s; what they write goes to %s", job, log)

    def _allocation_id(self) -> str:
        if self._allocation != CURRENT:
            assert self._allocation is not None
            return self._allocation
        job = os.environ.get("SLURM_JOB_ID")
        if job is None:
            raise SchedulerError(
                "allocation is 'current', and SLURM_JOB_ID is not set: run this inside salloc or sbatch"
            )
        return job

    # --- looking

    def _poll(self) -> Poll:
        soon = self._asked_at is not None and time.monotonic() - self._asked_at < _SOON
        self.poll_interval = _OFTEN if soon else _SELDOM
        job = self._id()
        if job is None:
            return Ended("nothing was submitted")
        try:
            rows = slurm_commands.look(job)
        except SchedulerError as exc:
            if not self._is_patient():
                raise
            return Waiting(f"{exc}; it is asked again")
        self._silent_since = None
        if not rows:
            return Ended(
                f"SLURM job {job} not found in queue: it has ended, or the id is another cluster's{self._said()}"
            )
        for row in rows:
            if row.over:
                return Ended(f"Slurm job {job} has ended: {row.why()}{self._said()}")
        waiting = next((row for row in rows if not row.running), None)
        if waiting is not None:
            return Waiting(f"Slurm job {job} is {waiting.why()}{self._place_of(job, waiting)}")
        if not self._met and (failed := slurm_script.failure(self._log())):
            return Ended(f"{failed} (Slurm job {job}, {self._logs[-1]})")
        if self._step is not None:
            return self._poll_step(job)
        return self._ready(job, rows)

    def _await_hosts(self) -> Ready:
        self._awaits = True
        try:
            return super()._await_hosts()
        finally:
            self._awaits = False

    def _is_patient(self) -> bool:
        """True if a controller that does not answer is waited for: its new start must not cost a place in the queue."""
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
        return self._awaits and now - self._silent_since < _PATIENCE

    def _ready(self, job: str, rows: list[JobRow]) -> Poll:
        expected = [component.nodes for component in self._components_of()]
        hosts: list[str] = []
        for nodes, row in zip(expected, rows, strict=False):
            there = slurm_commands.host_names(row.nodes)
            if len(there) != nodes:
                return Ended(f"Expected {nodes} nodes but got {len(there)}. Partial allocation not supported. "
                             f"(Slurm job {job} has {row.nodes or 'none'})")  # fmt: skip
            hosts += there
        if len(rows) < len(expected):
            return Waiting(f"Slurm job {job} has {len(rows)} of its {len(expected)} parts")
        return Ready(self._addresses(hosts))

    def _poll_step(self, job: str) -> Poll:
        if self._step in slurm_commands.steps(job).values():
            return Ready(self._addresses(self._hosts))
        if not self._met and not self._log():
            return Waiting(f"the workers start in Slurm job {job}")
        return Ended(f"the workers in Slurm job {job} have ended{self._said()}")

    def _addresses(self, hosts: Sequence[str]) -> dict[str, list[str]]:
        launch = self._launch
        assert launch is not None
        left = [f"{launch.scheme}://{host}:{self._port}" for host in hosts]
        workers = {}
        for name, nodes in self._meshes.items():
            workers[name], left = left[:nodes], left[nodes:]
        return workers

    def _place_of(self, job: str, row: JobRow) -> str:
        if row.reason not in ORDERLY:
            return ""
        now = time.monotonic()
        if not self._looked_at_queue or now - self._looked_at_queue >= _PLACE_EVERY:
            self._place = slurm_commands.place_in_queue(job, next(iter(self._partitions.values()), self._partition))
            self._looked_at_queue = now
        return (
            "" if self._place is None else f"; {self._place} jobs before it" if self._place else "; next in the queue"
        )

    def _id(self) -> str | None:
        """Returns the id of the job; for the client of a batch job, which was kept before it had one, that of the job
        around it."""
        return os.environ.get("SLURM_JOB_ID") if self._job_id is None and _in_batch() else self._job_id

    def _log(self) -> str:
        """The end of what the workers have written; "" where it cannot be read from here."""
        if not self._logs:
            return ""
        try:
            return end_of(self._logs[-1], _LOG_READ)
        except OSError:
            return ""

    def _said(self) -> str:
        lines = [line for line in self._log().splitlines() if line.strip()][-_TOLD:]
        if not lines:
            return f". Its log would be {self._logs[-1]}" if self._logs else ""
        return f". The end of {self._logs[-1]}:\n  " + "\n  ".join(lines)

    # --- its life

    def _state(self) -> JobState:
        if _in_batch():
            return super()._state()
        guard = Guard(self._job_id) if self._ours and not self._met and self._job_id and not self._step else None
        try:
            state = super()._state()
        except Exception as exc:
            if not isinstance(exc, SchedulerError) and self._log():
                exc.add_note(f"Workers were started by Slurm{self._said()}")
            raise
        finally:
            if guard is not None:
                guard.release()
        self._watch()
        return state

    def _watch(self) -> None:
        """Says in the log what becomes of the job while this process runs; calls fail by themselves."""
        if self._watched is not None:
            return
        self._watched = threading.Event()
        args = (self._watched, str(self._job_id))
        threading.Thread(target=watch, args=args, name="monarch-slurm", daemon=True).start()

    def _attach(self, workers: dict[str, list[str]]) -> dict[str, HostMesh]:
        if self._requires_sidecar_gateway():
            attach(self._attach_to or next(iter(workers.values()))[0])
        return super()._attach(workers)

    def _requires_sidecar_gateway(self) -> bool:
        return self._out_of_cluster or self._attach_to is not None

    def _prepare_client_gateway(self) -> None:
        attach(self._sidecar_attach_to() or "")

    def _sidecar_attach_to(self) -> str | None:
        if not self._requires_sidecar_gateway():
            return None
        return self._attach_to or next(iter(self._await_hosts().workers.values()))[0]

    def _cancel(self) -> None:
        if self._watched is not None:
            self._watched.set()
            self._watched = None
        job = self._job_id
        if job is None or _in_batch():  # the batch runner ends the workers and the job with the client
            return
        if self._step is not None:
            self._cancel_step(job, self._step)
        else:
            slurm_commands.cancel(job)
            left = _until(lambda: [row for row in slurm_commands.look(job) if not row.gone])
            for row in left:  # nodes that do not answer hold it up; Slurm ends it when they do, or are taken for dead
                job_logger().warning("Slurm job %s was cancelled and still waits for %s: %s", job, row.nodes, row.why())
        if self._met and self._log_dir is None:
            for log in self._logs:
                Path(log).unlink(missing_ok=True)
        self._job_id = self._step = None

    def _cancel_step(self, job: str, name: str) -> None:
        def ours() -> list[str]:
            return [step for step, named in slurm_commands.steps(job).items() if named == name]

        for step in ours():
            slurm_commands.cancel(step)
        if _until(ours):
            job_logger().warning("the workers in Slurm job %s were cancelled and are still ending (step %s)", job, name)

    def _same(self, spec: SlurmJob) -> bool:
        return self._asked() == spec._asked()

    def _asked(self) -> tuple[Any, ...]:
        """Returns what makes this job the one that another program asks for. Where its logs go, and whether its nodes are
        shared, does not."""
        return (
            list(self._meshes.items()), self._partitions, self._partition, self._python_exe, self._slurm_args, self._port,
            self._job_name, self._ntasks_per_node, self._time_limit, self._gpus_per_node, self._cpus_per_task, self._mem,
            self.start_timeout, self._account, self._qos, self._out_of_cluster, self._attach_to, self._bind_to,
            self._prologue, self._container_image, self._container_mounts, self._srun_args, self._allocation,
        )  # fmt: skip

    def _too_late(self, why: str) -> str:
        return f"Timeout waiting for SLURM job {self._job_id} to start, after {self.start_timeout:g} s: {why}"

    def _log_files(self) -> dict[str, str]:
        return dict(zip(("stdout", "stderr"), self._logs, strict=False))

    def _cleanup_log_context(self) -> dict[str, Any]:
        return {"job_id": self._job_id} | ({"step": self._step} if self._step else {})


def _until(left: Callable[[], list[Any]]) -> list[Any]:
    """Waits until nothing is left; what is left after `_ENDING` all the same."""
    deadline = time.monotonic() + _ENDING
    pause = threading.Event()
    while there := left():
        if time.monotonic() > deadline:
            break
        pause.wait(_LOOK)
    return there


def _in_batch() -> bool:
    return os.environ.get(BATCH_JOB) == "1"
