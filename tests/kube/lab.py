"""A cluster on this machine: the API server of api_server.py, and what acts on its objects.

The operator makes a Service and a StatefulSet of a MonarchMesh; the StatefulSet controller makes pods; kubelet runs each as a
process. Pods have no network of their own here: what would listen at all addresses of its pod listens at one loopback
address (127.x.y.z), another one for each pod that ever was. A container that ends with status 0 is started again; one that
fails is in CrashLoopBackOff and stays there.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kube.api_server import APPS, CORE, OPERATOR, ApiServer, Object, Store
from tests.support.hosts import MORTAL, ROOT
from tests.support.patience import TIMEOUT

NAMESPACE = "research"
IMAGE = "registry.local/train:1"
POD_INDEX = "apps.kubernetes.io/pod-index"
_EXEC = MORTAL + "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


class Pod:
    """A pod's process, from kubelet's side."""

    def __init__(self, name: str, ip: str, log: Path) -> None:
        self.name = name
        self.ip = ip
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None


class Lab:
    """One namespace. Everything that acts on objects runs in one thread, which also is the parent of all pods."""

    def __init__(self, folder: Path, operator: bool) -> None:
        self.folder = folder
        self.images = {IMAGE}
        self.quota: str = ""  # what the StatefulSet controller is told when it makes a pod
        self.unschedulable: str = ""  # what the scheduler says of every pod
        self.store = Store((NAMESPACE,))
        if not operator:
            self.store.served.discard((OPERATOR, "monarchmeshes"))
        self.api = ApiServer(self.store, folder)
        self.api.log_of = self._log_of
        self.api.port_of = lambda pod, port: (self.pods[pod].ip, port)
        self.pods: dict[str, Pod] = {}  # by name, those that kubelet knows
        self._addresses = itertools.count(40)
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._watches: list[threading.Thread] = []
        self.crashed = threading.Event()  # a container has failed, and its pod says so
        self.error: BaseException | None = None
        self.store.changed = lambda: self._work.put(self._reconcile)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    # --- what tests do

    def kubeconfig(self, **user: Any) -> Path:
        return self.api.kubeconfig(**user)

    def do(self, step: Callable[[], None]) -> None:
        """Has `step` done by the cluster's own thread, and waits until it and what follows from it are done."""
        done = threading.Event()
        self._work.put(step)
        self._work.put(self._reconcile)
        self._work.put(done.set)
        assert done.wait(TIMEOUT)
        if self.error is not None:
            raise self.error

    def evict(self, name: str) -> None:
        """The pod is gone with what ran in it, and its StatefulSet makes another."""
        self.do(lambda: self._delete("pods", name))

    def add(self, version: str, plural: str, body: Object) -> None:
        self.store.create(version, plural, NAMESPACE, body)
        self.do(lambda: None)

    def remove(self, version: str, plural: str, name: str) -> None:
        self.store.delete(version, plural, NAMESPACE, name)
        self.do(lambda: None)

    def addresses(self) -> dict[str, str]:
        """Returns the IP of each pod."""
        return {name: pod.ip for name, pod in sorted(self.pods.items())}

    def pids(self) -> list[int]:
        return [pod.process.pid for pod in self.pods.values() if pod.process is not None]

    def close(self) -> None:
        self.api.close()
        self._work.put(None)
        self._thread.join(TIMEOUT)
        for watch in self._watches:
            watch.join(TIMEOUT)
        if self.error is not None:
            raise self.error

    # --- the controllers

    def _run(self) -> None:
        try:
            while (step := self._work.get()) is not None:
                step()
        except BaseException as error:
            self.error = error
        finally:
            for name in list(self.pods):
                self._stop(name)

    def _reconcile(self) -> None:
        with self.store.lock:  # nothing is made of what has just been deleted
            self._act()

    def _act(self) -> None:
        for mesh in self.store.list(OPERATOR, "monarchmeshes", NAMESPACE):
            self._operate(mesh)
        for item in self.store.list(APPS, "statefulsets", NAMESPACE):
            self._control(item)
        there = {pod["metadata"]["name"]: pod for pod in self.store.list(CORE, "pods", NAMESPACE)}
        for name in [name for name in self.pods if name not in there]:
            self._stop(name)
        for pod in there.values():
            self._keep(pod)

    def _operate(self, mesh: Object) -> None:
        """Does as the operator does, which knows nothing of labels inside the template."""
        name, spec = mesh["metadata"]["name"], mesh["spec"]
        labels = {"app.kubernetes.io/name": "monarch-worker", "monarch.pytorch.org/mesh-name": name}
        template = {"metadata": {"labels": labels}, "spec": spec["podTemplate"]["spec"]}
        body = {
            "metadata": {"name": name, "labels": mesh["metadata"].get("labels", {}), "ownerReferences": [_owner(mesh)]},
            "spec": {"replicas": spec["replicas"], "selector": {"matchLabels": labels}, "template": template},
        }
        service = {
            "metadata": {"name": f"{name}-svc", "ownerReferences": [_owner(mesh)]},
            "spec": {"clusterIP": "None"},
        }
        if self.store.find(CORE, "services", NAMESPACE, f"{name}-svc") is None:
            self.store.create(CORE, "services", NAMESPACE, service)
        if self.store.find(APPS, "statefulsets", NAMESPACE, name) is None:
            self.store.create(APPS, "statefulsets", NAMESPACE, body)
        else:
            self.store.patch(APPS, "statefulsets", NAMESPACE, name, body)

    def _control(self, item: Object) -> None:
        name, spec = item["metadata"]["name"], item["spec"]
        wanted = {f"{name}-{rank}": rank for rank in range(spec["replicas"])}
        template = json.dumps(spec["template"], sort_keys=True)
        for pod in self.store.list(CORE, "pods", NAMESPACE):
            owners = pod["metadata"].get("ownerReferences") or [{}]
            if owners[0].get("uid") != item["metadata"]["uid"]:
                continue
            if pod["metadata"]["name"] not in wanted or pod["metadata"]["annotations"]["template"] != template:
                self._delete("pods", pod["metadata"]["name"])
        for pod_name, rank in wanted.items():
            if self.store.find(CORE, "pods", NAMESPACE, pod_name) is None:
                if self.quota:
                    self._warn(item, f"create Pod {pod_name} in StatefulSet {name} failed error: {self.quota}")
                    return
                self._make_pod(item, pod_name, rank, template)

    def _make_pod(self, item: Object, name: str, rank: int, template: str) -> None:
        metadata = {
            "name": name,
            "labels": item["spec"]["template"]["metadata"]["labels"] | {POD_INDEX: str(rank)},
            "annotations": {"template": template},
            "ownerReferences": [_owner(item)],
        }
        body = {"metadata": metadata, "spec": item["spec"]["template"]["spec"], "status": {"phase": "Pending"}}
        self.store.create(CORE, "pods", NAMESPACE, body)

    def _warn(self, item: Object, message: str) -> None:
        name = f"{item['metadata']['name']}.warning"
        if self.store.find(CORE, "events", NAMESPACE, name) is None:
            about = {"kind": item["kind"], "name": item["metadata"]["name"]}
            event = {"metadata": {"name": name}, "involvedObject": about, "type": "Warning", "message": message}
            self.store.create(CORE, "events", NAMESPACE, event | {"lastTimestamp": "2026-01-01T00:00:00Z"})

    def _delete(self, plural: str, name: str) -> None:
        if self.store.find(CORE, plural, NAMESPACE, name) is not None:
            self.store.delete(CORE, plural, NAMESPACE, name)
        self._stop(name)

    # --- kubelet

    def _keep(self, pod: Object) -> None:
        """Sees to it that a pod runs, or that its status says why it does not."""
        name = pod["metadata"]["name"]
        if name in self.pods:
            return
        if self.unschedulable:
            scheduled = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": self.unschedulable,
            }
            self._status(name, {"phase": "Pending", "conditions": [scheduled]})
            return
        container = pod["spec"]["containers"][0]
        if container["image"] not in self.images:
            message = f'Back-off pulling image "{container["image"]}": not found'
            self._waits(pod, "ImagePullBackOff", message)
            return
        try:
            variables = {variable["name"]: self._value(pod, variable) for variable in container.get("env") or []}
        except LookupError as error:
            self._waits(pod, "CreateContainerConfigError", f"secret {error} not found")
            return
        number = next(self._addresses)
        own = os.getpid()
        ip = f"127.{number % 200 + 40}.{own >> 8 & 255}.{max(1, own & 255)}"
        kept = self.pods[name] = Pod(name, ip, self.folder / f"{name}-{number}.log")
        self._start(kept, container, variables)

    def _value(self, pod: Object, variable: Object) -> str:
        if "value" in variable:
            return str(variable["value"])
        source = variable["valueFrom"]["secretKeyRef"]
        found = self.store.find(CORE, "secrets", NAMESPACE, source["name"])
        if found is None:
            raise LookupError(repr(source["name"]))
        return base64.b64decode(found["data"][source["key"]]).decode()

    def _start(self, pod: Pod, container: Object, variables: dict[str, str]) -> None:
        words = [*container.get("command", []), *container.get("args", [])]
        words = [sys.executable if word == "python" else word.replace("tcp://*:", f"tcp://{pod.ip}:") for word in words]
        runtime = self.folder / f"run-{pod.ip}"
        runtime.mkdir(exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MONARCH_")}
        environment = kept | {"PYTHONPATH": str(ROOT), "MONARCH_RUNTIME_DIR": str(runtime)} | variables
        with pod.log.open("ab") as log:
            pod.process = subprocess.Popen(
                [sys.executable, "-c", _EXEC, *words],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=self.folder,
            )  # fmt: skip
        running = {"name": container["name"], "image": container["image"], "state": {"running": {}}, "ready": True}
        self._status(
            pod.name,
            {
                "phase": "Running",
                "podIP": pod.ip,
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [running],
            },
        )
        process = pod.process

        def watch() -> None:
            code = process.wait()
            self._work.put(lambda: self._ended(pod, process, code, container, variables))

        thread = threading.Thread(target=watch)
        thread.start()
        self._watches.append(thread)

    def _ended(self, pod: Pod, process: Any, code: int, container: Object, variables: dict[str, str]) -> None:
        if self.pods.get(pod.name) is not pod or pod.process is not process:
            return  # it was stopped
        if code == 0:
            self._start(pod, container, variables)
            return
        found = self.store.find(CORE, "pods", NAMESPACE, pod.name)
        assert found is not None
        ended = {"terminated": {"exitCode": code if code > 0 else 128 - code, "reason": "Error"}}
        self._waits(found, "CrashLoopBackOff", "back-off 10s restarting failed container", ended)
        self.crashed.set()

    def _waits(self, pod: Object, reason: str, message: str, last: Object | None = None) -> None:
        container = pod["spec"]["containers"][0]
        state = {"name": container["name"], "image": container["image"], "ready": False, "lastState": last or {}}
        state["state"] = {"waiting": {"reason": reason, "message": message}}
        conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]
        status = {"phase": "Pending", "conditions": conditions, "containerStatuses": [state]}
        self._status(pod["metadata"]["name"], status)

    def _status(self, name: str, status: Object) -> None:
        if self.store.find(CORE, "pods", NAMESPACE, name) is not None:
            self.store.patch(CORE, "pods", NAMESPACE, name, {"status": status})

    def _stop(self, name: str) -> None:
        pod = self.pods.pop(name, None)
        if pod is None or pod.process is None:
            return
        process, pod.process = pod.process, None
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now, and another thread waits for it
                os.killpg(process.pid, signal.SIGKILL)
        process.wait(TIMEOUT)

    def _log_of(self, name: str) -> str:
        pod = self.pods.get(name)
        return pod.log.read_text() if pod is not None else ""


def _owner(item: Object) -> Object:
    kept = {"kind": item["kind"], "name": item["metadata"]["name"], "uid": item["metadata"]["uid"]}
    return kept | {"apiVersion": item["apiVersion"], "controller": True}


@contextmanager
def lab(operator: bool = False) -> Iterator[Lab]:
    """A cluster, with or without the operator. What ran in it is gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="mnk"))  # short: the address of a Unix socket holds about a hundred bytes
    cluster = Lab(folder, operator)
    try:
        yield cluster
    finally:
        try:
            cluster.close()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
