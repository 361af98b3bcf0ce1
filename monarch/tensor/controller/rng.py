"""The random numbers of the processes of a mesh: their states as distributed tensors, seeds, and determinism.

Everything here is issued to the active mesh and stream, in order with the operations there, and waits for nothing. A state
holds that of the CPU and that of the process's accelerator; in a process without one the latter is zeros, and setting it
does nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from monarch.tensor import metadata
from monarch.tensor.controller import dispatch, misuse
from monarch.tensor.controller.checks import trouble
from monarch.tensor.controller.mesh import get_active_mesh
from monarch.tensor.controller.records import recorder, recorders
from monarch.tensor.controller.stream import get_active_stream
from monarch.tensor.controller.stream_placement import StreamPlacement
from monarch.tensor.controller.tensor import Tensor
from monarch.tensor.generators import DEVICE_BYTES
from monarch.tensor.propagation import Leaf, PropagatedOutcome
from monarch.tensor.worker.random_numbers import RandomCall

if TYPE_CHECKING:
    from monarch.tensor.controller.mesh import DeviceMesh

# The last seed that the processes of a mesh were given by torch's functions, while it is true of all of them.
cpu_seeds: weakref.WeakKeyDictionary[DeviceMesh, int] = weakref.WeakKeyDictionary()
device_seeds: weakref.WeakKeyDictionary[DeviceMesh, int] = weakref.WeakKeyDictionary()
CPU_BYTES = torch.default_generator.get_state().numel()


class State(NamedTuple):
    """The states of each process's generators: uint8 tensors, `cpu` and `cuda` (whatever accelerator there is)."""

    cpu: torch.Tensor
    cuda: torch.Tensor


def get_state() -> State:
    """The states as they are at this point. ValueError when no mesh is active."""
    return State(*issue(_here(), "get_state", sizes=(CPU_BYTES, DEVICE_BYTES)))


def set_state(state: State) -> None:
    """Puts `state` back: the random numbers that follow are those that followed when it was taken."""
    place = _here()
    issue(place, "set_state", state)
    note_seed(cpu_seeds, place.mesh, None)
    note_seed(device_seeds, place.mesh, None)


def new_state(seed: Any) -> State:
    """The states of generators with that seed; none is set by it. `seed`: an integer, the same everywhere, or a
    distributed integer scalar, with a value for each process."""
    if not isinstance(seed, Tensor):
        seed = torch.tensor(int(seed))
    return State(*issue(_here(), "new_state", (seed,), sizes=(CPU_BYTES, DEVICE_BYTES)))


def manual_seed_per_rank(seed: int) -> None:
    """Seeds each process with `seed` plus its rank in the whole mesh (`mesh.process_idx()`), so that each draws other
    numbers, the same in every run: of the active mesh, the CPU's generator and those of accelerators.

    `torch.manual_seed(seed)` gives all of them the same seed. This process's own generators stay as they are. ValueError
    when no mesh is active, and for a seed that does not fit into 64 bits.
    """
    place = _here()
    issue(place, "manual_seed_per_rank", numbers=(checked_seed(seed),))
    note_seed(cpu_seeds, place.mesh, None)
    note_seed(device_seeds, place.mesh, None)


def make_deterministic() -> None:
    """Makes operations in the processes give the same results each time for the same inputs; those that cannot fail
    (as by `torch.use_deterministic_algorithms(True)`). It seeds nothing."""
    issue(_here(), "make_deterministic")


def checked_seed(seed: Any) -> int:
    """`seed` as a number that torch takes. ValueError for others."""
    number = int(seed)
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"a seed has 64 bits, from -2**63 to 2**64 - 1, and {number} does not fit")
    return number


def note_seed(seeds: weakref.WeakKeyDictionary[DeviceMesh, int], mesh: DeviceMesh, seed: int | None) -> None:
    """The generators of `mesh` have begun anew with `seed`; None where each has its own."""
    ranks = set(mesh.processes)
    for other in list(seeds):
        if other is mesh or (other.client is mesh.client and not ranks.isdisjoint(other.processes)):
            del seeds[other]
    if seed is not None:
        seeds[mesh] = seed & ((1 << 64) - 1)


def issue(
    place: StreamPlacement, what: str, tensors: Sequence[Tensor] = (), numbers: Sequence[int] = (), sizes: Sequence[int] = (),
    mutates: tuple[int, ...] = (),
) -> list[Tensor]:  # fmt: skip
    """Issues the RandomCall `what` at `place`; the states that it gives, of `sizes` bytes."""
    inputs = list(tensors)
    problems = [
        problem
        for index, tensor in enumerate(inputs)
        if (problem := trouble(tensor, place, index in mutates)) is not None
    ]
    if problems:
        raise misuse.incorrect(f"monarch.random.{what}", inputs, {}, problems, place.mesh, place.stream)
    if recorders and (here := recorder()) is not None:
        here.read(inputs)
    signature = place.engine.define(("random", what), RandomCall(what, sizes, mutates))
    ident = place.engine.run(place, signature, [tensor._record.ref for tensor in inputs], numbers, len(sizes))
    leaves = [Leaf(metadata.contiguous((size,), torch.uint8, "cpu")) for size in sizes]
    taint = inputs[0]._record.storage.taint if inputs else None
    with torch.inference_mode(False):  # a state may be put back outside of inference mode too
        return dispatch.fresh_leaves(PropagatedOutcome(leaves, list, mutates, ()), inputs, place, ident, taint)


def _here() -> StreamPlacement:
    return get_active_mesh().place(get_active_stream())
