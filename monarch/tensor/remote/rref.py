"""`endpoint.rref(...)`: actors work on distributed tensors, and what they return stays where it is.

The message goes to the actors at once. A call is issued on the stream of the tensors, at its place in their order, that
waits in each process for that actor's result and takes it over. So later operations on the results wait for the actors,
and everything that was issued before is done when the actors get their arguments.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from monarch._linux.locks import Lock
from monarch.actor import ActorError, Endpoint, Future, NDSlice, Shape
from monarch.actor.lowlevel import start_thread, when_ready
from monarch.tensor import patterns, propagation
from monarch.tensor.controller import dispatch, misuse
from monarch.tensor.controller.activation import active_mesh
from monarch.tensor.controller.checks import trouble
from monarch.tensor.controller.engines import device_mesh
from monarch.tensor.controller.records import recorder, recorders
from monarch.tensor.controller.stream import get_active_stream
from monarch.tensor.controller.taint import merge
from monarch.tensor.controller.tensor import Tensor
from monarch.tensor.failures import Failed, RemoteException
from monarch.tensor.remote.remote_function import _mutated
from monarch.tensor.worker import actor_transfers

if TYPE_CHECKING:
    from torch.utils._pytree import PyTree, TreeSpec

    from monarch.tensor.controller.engine import TensorEngine
    from monarch.tensor.controller.mesh import DeviceMesh
    from monarch.tensor.signature import Args, Kwargs, Runner, Scalar
    from monarch.tensor.worker.executor import Executor

_log = logging.getLogger("monarch")


def rref(endpoint: Endpoint[Any, Any], args: Args, kwargs: Kwargs) -> PyTree:
    """Calls an endpoint with `rref`; see `Endpoint.rref`."""
    propagate = endpoint._property._propagator
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    mesh = _mesh_of(endpoint, tensors)
    place = mesh.place(get_active_stream())
    problems = [
        problem
        for tensor in tensors
        if (problem := trouble(tensor, tensor._record.place.mesh.place(place.stream), False)) is not None
    ]
    if problems:
        raise misuse.incorrect(endpoint._name, args, kwargs, problems, mesh, place.stream)
    if propagate == "inspect":
        outcome, count = patterns.nothing(), None
    else:
        outcome = patterns.propagated(propagate, lambda fakes: _with(fakes, leaves, spec), tensors)
        count = len(outcome.leaves)
    for index in outcome.mutates:
        problem = trouble(tensors[index], tensors[index]._record.place, True)
        if problem is not None:
            raise misuse.incorrect(endpoint._name, args, kwargs, [problem], mesh, place.stream)
    if recorders and (here := recorder()) is not None:
        here.fetching("calling actors with rref")
    name, answers = endpoint._keep(args, kwargs)
    call = TakeResult(name, place.engine.worker_key, endpoint._name, count, outcome)
    ident = place.engine.do(place, call, [tensor._record.ref for tensor in tensors], len(outcome.fresh))
    _watch(place.engine, name, endpoint._mesh._plan.addresses, answers)
    taint = None
    for tensor in tensors:
        taint = merge(taint, tensor._record.storage.taint)
    if outcome.mutates:
        _mutated(tensors, outcome.mutates, taint)
    made = dispatch.fresh_leaves(outcome, tensors, place, ident, taint)
    return made[0] if outcome.structure is None else outcome.structure(made)


def _with(fakes: Sequence[object], leaves: Sequence[object], spec: TreeSpec) -> PyTree:
    """The arguments with stand-ins for the tensors."""
    rest = iter(fakes)
    return pytree.tree_unflatten([next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)


# --- where -----------------------------------------------------------------------------------------------------


def _mesh_of(endpoint: Endpoint[Any, Any], tensors: Sequence[Tensor]) -> DeviceMesh:
    """The mesh of the results: exactly the processes of the actors."""
    addresses = endpoint._mesh._plan.addresses
    candidates = [tensor._record.place.mesh for tensor in tensors]
    active = active_mesh()
    if active is not None:
        candidates.append(active)
    wanted = set(addresses)
    engines = []
    for mesh in candidates:
        there = mesh.client.addresses
        if {there[rank] for rank in mesh.processes} == wanted:
            return mesh
        if mesh.client not in engines:
            engines.append(mesh.client)
    for engine in engines:
        found = _mesh_in(engine, endpoint)
        if found is not None:
            return found
    if engines:
        raise ValueError(
            f"tensors and actors must share the same processes: {endpoint._name!r} has {len(addresses)} actors, and "
            f"not all of them are on {candidates[0]!r}. Spawn the actors on the mesh of the tensors, slice them, or "
            f"move the tensors"
        )
    root = device_mesh(endpoint._mesh._spec.proc_mesh)
    found = _mesh_in(root.client, endpoint)
    assert found is not None  # the engine of these very processes
    return found


def _mesh_in(engine: TensorEngine, endpoint: Endpoint[Any, Any]) -> DeviceMesh | None:
    """The mesh of the actors' processes with the labels of their mesh; None when the engine does not have them all."""
    shape = endpoint._mesh._shape
    places = {address: rank for rank, address in enumerate(engine.addresses)}
    ranks = [places.get(address, -1) for address in endpoint._mesh._plan.addresses]
    if min(ranks) < 0:
        return None
    strides, step = [], len(ranks)
    for size in shape.ndslice.sizes:
        step //= size
        strides.append(ranks[step] - ranks[0] if size > 1 else 1)
    slices = NDSlice(offset=ranks[0], sizes=list(shape.ndslice.sizes), strides=strides)
    return engine.mesh(Shape(list(shape.labels), slices)) if list(slices) == ranks else None


# --- in the workers ---------------------------------------------------------------------------------------------


class TakeResult:
    """A call on a stream: waits for the result of the actor in this process, and takes its tensors over."""

    def __init__(
        self, result: Hashable, worker: str, endpoint: str, count: int | None, outcome: propagation.PropagatedOutcome
    ) -> None:
        self.result = result
        self.worker = worker
        self.endpoint = endpoint
        self.count = count
        self.keeps: tuple[int, ...] | None = outcome.keeps
        self.mutates = outcome.mutates

    def name(self) -> str:
        return f"endpoint {self.endpoint}"

    def prepare(self, executor: Executor) -> Runner:
        def run(tensors: Sequence[torch.Tensor], numbers: Sequence[Scalar]) -> Any:
            leaves = actor_transfers.kept(self.result, self.worker)
            failed = next((value for value in tensors if isinstance(value, Failed)), None)
            if failed is not None:
                raise actor_transfers.InputFailed(failed, self.worker)
            if self.count is None:
                return []
            if len(leaves) != self.count:
                raise RuntimeError(
                    f"endpoint {self.endpoint!r} returned {len(leaves)} values, and its `propagate` says "
                    f"{self.count}: both have to return the same structure"
                )
            for index in (0,) if self.keeps is None else self.keeps:
                if not isinstance(leaves[index], torch.Tensor):
                    raise TypeError(
                        f"endpoint {self.endpoint!r} returned {type(leaves[index]).__name__} where its `propagate` "
                        f"says that it returns a tensor"
                    )
            taken = [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            return taken[0] if self.keeps is None else taken

        return run


# --- what goes wrong ---------------------------------------------------------------------------------------------


class _RrefCall:
    """One rref whose actors have not all answered. `done`: ranks of the view that have."""

    __slots__ = ("addresses", "done", "engine", "name")

    def __init__(self, engine: TensorEngine, name: object, addresses: Sequence[str]) -> None:
        self.engine = engine
        self.name = name
        self.addresses = addresses
        self.done: set[int] = set()

    def answered(self, answer: Future[Any]) -> None:
        """An actor that cannot answer (it has ended, it refused the message) leaves no result in its process: the
        worker there is told, so that its stream does not wait for it. What an endpoint raises is left by the actor
        itself."""
        try:
            rank, _ = answer.get(0)
        except (ActorError, RemoteException):
            return
        except Exception as exc:
            if not self.engine.ended:
                self._tell(exc)
            return
        self.done.add(rank)

    def _tell(self, error: Exception) -> None:
        workers = self.engine.workers
        ranks = {address: rank for rank, address in enumerate(self.engine.addresses)}
        for index, address in enumerate(self.addresses):
            if index not in self.done:
                workers._at(ranks[address]).fail_kept.broadcast(self.name, error)


_answers: queue.SimpleQueue[tuple[_RrefCall, Future[Any]]] = queue.SimpleQueue()
_starting = Lock()
_reader: list[threading.Thread] = []


def _watch(engine: TensorEngine, name: object, addresses: Sequence[str], answers: Sequence[Future[Any]]) -> None:
    with _starting:
        if not _reader:
            _reader.append(start_thread(_read, "tensor-answers"))
    call = _RrefCall(engine, name, addresses)
    for answer in answers:
        when_ready(answer, partial(_answers.put, (call, answer)))


def _read() -> None:
    while True:
        call, answer = _answers.get()
        try:
            call.answered(answer)
        except Exception as exc:  # the workers are gone, and the engine hears of that as well
            _log.debug("could not tell the workers of a failed rref: %s", exc)
        del call, answer
