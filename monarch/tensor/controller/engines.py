"""The engines of meshes of processes: one for each root ProcMesh, started when first asked for."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from typing import Any

from monarch._linux.locks import Lock
from monarch.actor import (
    Actor,
    Channel,
    MeshFailure,
    NDSlice,
    Port,
    ProcMesh,
    Shape,
    context,
    endpoint,
    this_proc,
)
from monarch.tensor.controller.engine import TensorEngine
from monarch.tensor.controller.mesh import DeviceMesh
from monarch.tensor.failures import cause_of
from monarch.tensor.propagation import fake_mode

_names = itertools.count(1)
_engines: dict[Any, TensorEngine] = {}  # by the uid of the ProcMesh
_starting = Lock()
_keepers: weakref.WeakValueDictionary[str, TensorEngine] = weakref.WeakValueDictionary()


class TensorController(Actor):
    """Owns the workers of an engine, in the controller's process: their failures end the engine, and not the program."""

    _is_system_actor = True

    def __init__(self, key: str) -> None:
        self._key = key
        self._workers: Any = None
        self._rendezvous: Any = None

    @endpoint
    def start(self, procs: ProcMesh, environments: list[dict[str, str]], last_words: Port[Any]) -> Any:
        """Spawns the workers, and the rendezvous where their groups meet; gives references to them."""
        from monarch.tensor.worker.rendezvous import Rendezvous
        from monarch.tensor.worker.worker_actor import TensorWorker

        self._rendezvous = this_proc().spawn("tensor_rendezvous", Rendezvous)
        services = (self._rendezvous, self._key)
        self._workers = procs.spawn("tensor_worker", TensorWorker, environments, services, last_words)
        self._workers.initialized.get()
        return self._workers, self._rendezvous

    @endpoint
    def stop_workers(self) -> None:
        self._rendezvous.end.broadcast("the tensor engine has ended")
        self._workers.stop().get()
        self._rendezvous.stop().get()

    def __supervise__(self, failure: MeshFailure) -> bool:
        engine = _keepers.get(self._key)
        if engine is not None:
            engine.end(cause_of(failure.report()))
        if self._rendezvous is not None:
            self._rendezvous.end.broadcast(f"a process of the tensor engine has ended: {failure.report()}")
        self._workers.stop()  # begins: in the processes that live, the tensors' memory is free again
        return True

    def __cleanup__(self, exc: Exception | None) -> None:
        engine = _keepers.get(self._key)
        if engine is not None:  # the program ends, and the workers have
            engine.unfetched.hear()


def spawn_tensor_engine(procs: ProcMesh) -> DeviceMesh:
    """A fresh engine on `procs`, apart from the one that `procs.activate()` uses; `exit()` of the mesh ends it.

    Starts one worker actor a process and waits for them. Raises SpawnError or SupervisionError when one does not come up.
    """
    factory = _simulating()
    if factory is not None:
        return _simulated(factory, procs)
    key = f"{procs._spec.uid}.{next(_names)}"
    keeper: Any = this_proc().spawn("tensor_controller", TensorController, key)
    port, last_words = Channel[Any].open()
    port.return_undeliverable = False  # a program that is gone wants to know of nothing
    starting = keeper.start.call_one(procs, _environments(procs), port)
    fake_mode()  # imports for more than a second: meanwhile the workers start
    workers, rendezvous = starting.get()
    shape = Shape(list(procs.extent.labels), NDSlice.new_row_major(procs.extent.sizes))
    engine = TensorEngine(
        procs._spec.name or key, shape, workers, lambda: keeper.stop_workers.call_one().exception(timeout=30)
    )
    engine.rendezvous = rendezvous
    engine.unfetched.listen(last_words)
    _keepers[key] = engine
    return engine.root


def device_mesh(procs: ProcMesh) -> DeviceMesh:
    """The mesh of `procs`, a ProcMesh or a slice of one, on the engine of the whole; starts that engine if there is none."""
    root = procs._spec
    factory = _simulating()
    key = root.uid if factory is None else (root.uid, factory)
    with _starting:
        engine = _engines.get(key)
        if engine is not None and engine.ended:
            engine = None
        if engine is None:
            engine = _engines[key] = spawn_tensor_engine(procs._root()).client
    made: DeviceMesh = engine.mesh(procs._shape)
    return made


def _simulating() -> Any:
    """Returns what makes the mesh in place of processes for the actor that runs this; None for most
    (`patch_tensor_engine`)."""
    try:
        behaviour = context().actor_instance._instance.behaviour
    except RuntimeError:  # a plain thread of an actor's process: nobody can say whose
        return None
    return getattr(getattr(behaviour, "cls", None), "_tensor_engine_factory", None)


def _simulated(factory: Any, procs: ProcMesh) -> DeviceMesh:
    made = factory(procs)
    engine: TensorEngine = getattr(made, "mesh", made).client
    if len(engine.root) != len(procs):
        raise ValueError(f"the simulated mesh has {len(engine.root)} ranks, and {procs} has {len(procs)}")
    mesh: DeviceMesh = engine.mesh(Shape(list(procs.extent.labels), NDSlice.new_row_major(procs.extent.sizes)))
    return mesh


def _environments(procs: ProcMesh) -> list[dict[str, str]]:
    """Returns the variables that libraries for distributed programs read, for each rank. Ranks of one host count
    among each other, whatever the mesh's dimensions are called."""
    hosts = [host for host, _ in procs._places()]
    sizes, seen = Counter(hosts), Counter[str]()
    found = []
    for rank, host in enumerate(hosts):
        found.append(
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(hosts)),
                "LOCAL_RANK": str(seen[host]),
                "LOCAL_WORLD_SIZE": str(sizes[host]),
            }
        )
        seen[host] += 1
    return found
