"""KubernetesJob: when what is asked of the API server. What is asked for is in manifests.py, what pods answer in pods.py."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from monarch.actor import HostMesh, attach
from monarch.job.kubernetes import manifests
from monarch.job.kubernetes.api import Cluster, ClusterError
from monarch.job.kubernetes.gateway import ForwardTarget, enter, held_secret, leave
from monarch.job.kubernetes.image_spec import ImageSpec
from monarch.job.kubernetes.kube_config import KubeConfig, access
from monarch.job.kubernetes.manifests import POD_INDEX, STATEFUL_SET, Names
from monarch.job.kubernetes.mesh import PodMesh, pod_mesh
from monarch.job.kubernetes.outage import LIMIT, Outage
from monarch.job.kubernetes.pods import (
    MeshPods,
    Patience,
    Pod,
    job_of,
    look,
    name_of,
    port_of,
    rank_of,
    secret_of,
    within,
)
from monarch.job.progress import job_logger
from monarch.job.scheduled import Ended, Poll, Ready, ScheduledJob, Waiting
from monarch.job.worker_launch import LEASE, WorkerLaunch

if TYPE_CHECKING:
    from kubernetes.client import V1PodTemplateSpec

_BATCH = "KubernetesJob cannot run batch-mode scripts"
_NOT_OURS = "KubernetesJob currently does not support killing pods."
_LOOK = 5.0  # seconds a mesh that was kept gets to be complete, an evicted pod to be back
_ENDING = 30.0  # seconds that pods get to end
_STEP = 0.2  # seconds between two looks at what ends

T = TypeVar("T")


class KubernetesJob(ScheduledJob):
    """Hosts that are pods: those that a job makes, and those that others have made.

        job = KubernetesJob("research", kubeconfig=KubeConfig.from_path("~/.kube/config"))
        job.add_mesh("trainers", 4, image_spec=ImageSpec("registry.local/train:1", {"nvidia.com/gpu": 8}))
        hosts = job.state().trainers

    `timeout`: seconds that the pods may take to be ready; None: as long as it takes. `kubeconfig`: which cluster and who
    asks, also the path of a file; None: this program runs in a pod and is who its service account is. A client outside the
    cluster reaches all pods through one of them, by a port forward that the API server makes and that lasts as long as the
    program; or through `attach_to`, the address of a worker that can be reached otherwise (`tcp://127.0.0.1:26600`).
    `operator`: whether meshes are MonarchMesh objects, of which an operator makes pods; None: where the cluster knows that
    kind.

    Pods whose image cannot be had or whose worker crashes fail the job after two minutes. There is no batch mode.
    """

    poll_interval = 1.0
    hosts_come_back = True

    def __init__(
        self,
        namespace: str,
        timeout: float | None = None,
        kubeconfig: KubeConfig | str | os.PathLike[str] | None = None,
        attach_to: str | None = None,
        *,
        operator: bool | None = None,
    ) -> None:
        super().__init__()
        if not namespace:
            raise ValueError("namespace is empty: pods are in one, such as 'default'")
        self.start_timeout = timeout
        self._namespace = namespace
        if isinstance(kubeconfig, str | os.PathLike):
            kubeconfig = KubeConfig.from_path(kubeconfig)
        self._kubeconfig = kubeconfig
        self._attach_to = attach_to
        self._operator = operator
        self._meshes: dict[str, PodMesh] = {}
        self._names = Names(namespace, "")  # of the objects that were made
        self._made: list[tuple[str, str]] = []  # kind and name of each, in that order
        self._forget_connection()

    def _forget_connection(self) -> None:
        cluster = self.__dict__.get("_cluster")
        if cluster is not None:
            cluster.close()
        self._cluster: Cluster | None = None
        self._patience = Patience()
        self._outage = Outage()
        self._seen: dict[str, MeshPods] = {}
        self._warned: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        mine = ("_cluster", "_patience", "_outage", "_seen", "_warned")
        return {name: value for name, value in super().__getstate__().items() if name not in mine}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget_connection()

    def add_mesh(
        self,
        name: str,
        num_replicas: int,
        label_selector: str | None = None,
        pod_rank_label: str = POD_INDEX,
        image_spec: ImageSpec | Mapping[str, Any] | None = None,
        port: int = manifests.DEFAULT_PORT,
        pod_template: V1PodTemplateSpec | Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """A mesh of `num_replicas` hosts, called `name`: 1 to 63 of a to z and 0 to 9, a letter first; 52 where
        the job makes the pods.

        With `image_spec` or `pod_template` the job makes the pods; the template's first container has to run
        `monarch worker --address 'tcp://*:PORT'`, for which the job gives it MONARCH_PORT and MONARCH_SECRET. `labels` and
        `annotations` go to the object that makes the pods, for queues such as Kueue.

        Otherwise the pods are there, or will be: those of `label_selector`, by default those that an operator or another
        job has made for a mesh of this name. Each has its rank in the label `pod_rank_label`. Their secret is read from
        where their own MONARCH_SECRET comes from. ValueError for what contradicts itself.
        """
        if isinstance(image_spec, Mapping):
            image_spec = ImageSpec(**image_spec)
        self._meshes[name] = pod_mesh(
            name, num_replicas, label_selector, pod_rank_label, image_spec, port, pod_template, labels, annotations
        )

    # --- what the scheduler says

    def _submit(self, launch: WorkerLaunch, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError(_BATCH)
        if not self._meshes:
            raise ValueError("At least one mesh must be added using add_mesh()")
        if self._made:
            raise RuntimeError("this job was created already: kill() it first")
        if not self._provisioned():
            return
        assert self._apply_id is not None
        if self._requires_sidecar_gateway() and held_secret() is not None:
            # A second job of a program outside: the way in, which cannot be changed, knows the first one's secret.
            launch = self._launch = msgspec.structs.replace(launch, secret=held_secret())
        operator = self._insist(Cluster.has_operator) if self._operator is None else self._operator
        self._names = Names(self._namespace, self._apply_id.replace("-", "")[:12])
        try:
            made = self._make(manifests.secret(self._names, launch.secret))
            self._names = Names(self._namespace, self._names.job, str(within(made, "metadata", "uid") or ""))
            for mesh in self._provisioned():
                for manifest in self._objects_of(mesh, launch, operator):
                    self._make(manifest)
        except BaseException:
            self._cancel()
            raise
        kinds = "MonarchMesh" if operator else "StatefulSet"
        job_logger().info("made %s %s in namespace %s", kinds, ", ".join(self._provisioned_names()), self._namespace)

    def _make(self, manifest: manifests.Manifest) -> Mapping[str, Any]:
        self._made.append((manifest["kind"], manifest["metadata"]["name"]))
        return self._insist(lambda cluster: cluster.create(manifest))

    def _insist(self, ask: Callable[[Cluster], T]) -> T:
        """Asks, and again while the API server is overloaded or has just gone, for a minute."""
        while True:
            cluster = self._connected()
            try:
                found = ask(cluster)
            except ClusterError as error:
                # One that has never answered is none, or the network is not there.
                wait = self._outage.pause(error, time.monotonic()) if cluster.answered else None
                if wait is None:
                    raise
                if not self._outage.said:
                    self._outage.said = True
                    job_logger().warning("%s. It is asked again for %g s", str(error).rstrip("."), LIMIT)
                _wait(wait)
            else:
                self._outage.over()
                return found

    def _objects_of(self, mesh: PodMesh, launch: WorkerLaunch, operator: bool) -> list[manifests.Manifest]:
        # Without the lease: kubelet would start a worker that ends again, and nothing would be given back.
        told = {name: value for name, value in launch.environment().items() if name != LEASE}
        variables = manifests.environment(told, self._names, mesh.port)
        template = mesh.pod_template(launch.command("python", f"{launch.scheme}://*:{mesh.port}"), variables)
        return manifests.mesh_objects(
            self._names, mesh.name, mesh.size, mesh.port, template,
            operator=operator, labels=mesh.labels, annotations=mesh.annotations,
        )  # fmt: skip

    def _poll(self) -> Poll:
        now = time.monotonic()
        if self._outage.left_alone(now):
            return Waiting(self._outage.why)
        try:
            pods = [self._pods_of(mesh) for mesh in self._meshes.values()]
            self._seen = {found.mesh: found for found in pods}
            missing = [found for found in pods if found.missing]
            poll = self._missing(missing) if missing else Ready({found.mesh: found.workers for found in pods})
        except ClusterError as error:
            if self._outage.pause(error, now) is None:
                raise
            return Waiting(str(error))
        self._outage.over()
        return poll

    def _pods_of(self, mesh: PodMesh) -> MeshPods:
        def ours(pod: Pod) -> bool:
            return not mesh.provisioned or job_of(pod) == self._names.job

        assert self._launch is not None
        pods = self._connected().pods(mesh.selector)
        found = look(mesh.name, mesh.size, pods, scheme=self._launch.scheme, rank_label=mesh.rank_label, ours=ours)
        for pod, why in found.skipped.items():
            if pod not in self._warned:
                self._warned.add(pod)
                job_logger().warning("pod %s is no host of mesh %s: %s", pod, mesh.name, why)
        return found

    def _missing(self, incomplete: list[MeshPods]) -> Poll:
        """Describes the meshes whose pods are not all ready."""
        said = []
        for found in incomplete:
            why = found.why()
            if self._meshes[found.mesh].provisioned:
                gone = self._gone(found)
                if gone:
                    return Ended(gone)
                given_up = self._patience.ended(found, time.monotonic())
                if given_up is not None:
                    pod, obstacle = given_up
                    return Ended(self._hopeless(pod, obstacle.why, obstacle.crashed))
                if not found.addresses and not found.obstacles:
                    warning = self._connected().warning(STATEFUL_SET, found.mesh)
                    why += f"; no pod was made yet{': ' + warning if warning else ''}"
            said.append(why)
        return Waiting("; ".join(said))

    def _gone(self, found: MeshPods) -> str:
        """Returns why a mesh will not get its pods: what makes them was deleted. "" when it is there."""
        kind = next(kind for kind, name in self._made if name == found.mesh)
        made = self._connected().read(manifests.KINDS[kind], found.mesh)
        if made is not None and within(made, "metadata", "labels", manifests.JOB_LABEL) == self._names.job:
            return ""
        what = "was deleted" if made is None else "is another job's now"
        return f"{kind} {found.mesh} in namespace {self._namespace} {what}: its pods do not come back"

    def _hopeless(self, pod: str, why: str, crashed: str) -> str:
        words = self._connected().last_words(pod, crashed) if crashed else ""
        ending = f"; its container wrote last:\n{words}" if words else ""
        return f"pod {pod} in namespace {self._namespace} cannot start: {why}{ending}"

    def _too_late(self, why: str) -> str:
        for found in self._seen.values():
            if found.missing:
                return (
                    f"Watch ended with {len(found.addresses)}/{found.size} ranks. Missing ranks: {found.missing}. "
                    f"After {self.start_timeout:g} s: {why}"
                )
        return super()._too_late(why)

    def _cancel(self) -> None:
        """Deletes what was made, the last first, and waits until its pods have ended."""
        while self._made:
            kind, name = self._made[-1]
            self._insist(functools.partial(Cluster.delete, kind=manifests.KINDS[kind], name=name, job=self._names.job))
            self._made.pop()
        left = self._insist(self._left)
        deadline = time.monotonic() + _ENDING
        while left and time.monotonic() < deadline:
            _wait(_STEP)
            left = self._insist(self._left)
        if left:
            job_logger().warning("these pods in namespace %s still end: %s", self._namespace, ", ".join(left))
        self._names = Names(self._namespace, "")
        leave(self._owner)
        self._forget_connection()

    def _left(self, cluster: Cluster) -> list[str]:
        """Pods of this job that are there still."""
        if not self._names.job:
            return []
        return [
            name_of(pod)
            for mesh in self._provisioned()
            for pod in cluster.pods(mesh.selector)
            if job_of(pod) == self._names.job
        ]

    def _same(self, spec: KubernetesJob) -> bool:
        return self._namespace == spec._namespace and list(self._meshes.items()) == list(spec._meshes.items())

    # --- a job's life

    def can_run(self, spec: Any) -> bool:
        """True if all pods are ready, within 5 s for each mesh, and `spec` asks for the same. SchedulerError when the cluster
        cannot be asked: then nobody knows, and the job is left as it is."""
        if type(spec) is not type(self) or not self.active or self._tls != spec._tls or not self._same(spec):
            return False
        deadline = time.monotonic() + _LOOK * len(self._meshes)
        while True:
            poll = self._poll()
            if not isinstance(poll, Waiting):
                return isinstance(poll, Ready)
            if self._outage.why:
                raise ClusterError(poll.why, None)
            if time.monotonic() >= deadline:
                return False
            _wait(_STEP)

    def _rebind_connection_inputs(self, spec: Any) -> None:
        if isinstance(spec, KubernetesJob):
            self._kubeconfig, self._attach_to = spec._kubeconfig, spec._attach_to
            self._forget_connection()

    def _kill(self) -> None:
        """Pods that others have made are left as they are, and their workers too."""
        self._attached = {name: mesh for name, mesh in self._attached.items() if self._meshes[name].provisioned}
        if not self._provisioned():
            leave(self._owner)
            self._forget_connection()
            raise NotImplementedError(_NOT_OURS)
        super()._kill()

    def _cleanup_log_context(self) -> dict[str, Any]:
        return {"namespace": self._namespace, "meshes": sorted(self._provisioned_names()), "secret": self._names.secret}

    @property
    def _owner(self) -> str:
        """Returns the name under which this job enters the cluster."""
        return f"{self._namespace}/{next(iter(self._meshes), '')} ({self._apply_id})"

    def _provisioned(self) -> list[PodMesh]:
        return [mesh for mesh in self._meshes.values() if mesh.provisioned]

    def _provisioned_names(self) -> list[str]:
        return [mesh.name for mesh in self._provisioned()]

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(access(self._kubeconfig), self._namespace)
        return self._cluster

    # --- to the workers

    def _attach(self, workers: dict[str, list[str]]) -> dict[str, HostMesh]:
        self._prepare_client_gateway()
        return super()._attach(workers)

    def _proof(self, name: str) -> dict[str, Any]:
        mesh = self._meshes[name]
        return super()._proof(name) | ({} if mesh.provisioned else {"secret": self._their_secret(mesh)})

    def _their_secret(self, mesh: PodMesh) -> str | None:
        """Returns the secret of pods which others have made; None when they do not say, and then this program's
        environment does."""
        for pod in self._connected().pods(mesh.selector):
            found = secret_of(pod)
            if found is not None:
                return self._connected().secret(*found)
        return None

    def _requires_sidecar_gateway(self) -> bool:
        return self._attach_to is not None or (self._kubeconfig is not None and self._kubeconfig.out_of_cluster)

    def _prepare_client_gateway(self) -> None:
        if self._requires_sidecar_gateway():
            address = self._sidecar_attach_to()
            assert address is not None
            attach(address, **self._proof(next(iter(self._meshes))))

    def _sidecar_attach_to(self) -> str | None:
        """The address that leads into the cluster, for this process; None in the cluster."""
        if self._attach_to is not None or not self._requires_sidecar_gateway():
            return self._attach_to
        assert self._launch is not None
        secret = self._proof(next(iter(self._meshes)))["secret"]
        return f"{self._launch.scheme}://127.0.0.1:{enter(self._owner, self._first_pod(), secret)}"

    def _first_pod(self) -> ForwardTarget:
        """Rank 0 of the first mesh, through which the others are reached."""
        mesh = next(iter(self._meshes.values()))
        self._await_hosts()
        cluster = self._connected()
        for pod in cluster.pods(mesh.selector):
            if rank_of(pod, mesh.rank_label) == 0 and (not mesh.provisioned or job_of(pod) == self._names.job):
                return ForwardTarget(cluster.access, self._namespace, name_of(pod), port_of(pod))
        raise ClusterError(f"rank 0 of mesh {mesh.name} has just gone; try again", None)


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)
