"""torch.Generator of a program with meshes: one of this process, with a state in each process of the meshes that use it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from monarch.tensor.controller import rng, rng_draws
from monarch.tensor.controller.activation import mesh_of_operations
from monarch.tensor.controller.constants import constant
from monarch.tensor.controller.handles import is_distributed, make
from monarch.tensor.controller.records import TensorRecord, recorder, recorders, share
from monarch.tensor.controller.stream import get_active_stream
from monarch.tensor.controller.stream_placement import StreamPlacement
from monarch.tensor.generators import DEVICE_BYTES
from monarch.tensor.signature import OpCall, TensorHole

if TYPE_CHECKING:
    from monarch.tensor.controller.engine import TensorEngine
    from monarch.tensor.controller.mesh import DeviceMesh

_Plain: Any = torch._C.Generator


class _GeneratorType(type(_Plain)):  # type: ignore[misc]  # it is `type`, or a class of torch's
    """It stands for torch's class while a mesh is active in some thread: where none is, torch's own are made; and those
    are instances of it too."""

    def __call__(cls, device: object = "cpu") -> Any:
        return _Plain(device) if mesh_of_operations() is None else super().__call__(device)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Plain)

    def __subclasscheck__(cls, subclass: Any) -> bool:
        return issubclass(subclass, _Plain)


class Generator(_Plain, metaclass=_GeneratorType):
    """torch.Generator(device="cpu") made while a mesh is active: as torch documents it, and as if each process had made one.

    An operation on a mesh that is given it draws, in each process, from a copy that begins in the state the generator has
    here; each copy proceeds by what its own process draws, and this process's own by what is drawn here. So processes draw
    the numbers of plain torch, and the same as each other until they are seeded apart.

    While a mesh is active `manual_seed`, `seed` and `set_state` are for this process and that mesh; then, and whenever
    none is active, other meshes begin anew with the state here. `get_state()` gives a distributed tensor there: what it
    was given back to, `set_state` restores in order with operations. Nothing here waits. `initial_seed()` is the last
    seed given here.

    A device that only the processes have may be named. A generator belongs to the stream on which its mesh used it first:
    TypeError WRONG_STREAM on another. Pickled, and in a remote function's arguments, it is torch's own in the state it has
    here.
    """

    def __new__(cls, device: object = "cpu") -> Generator:
        wanted = torch.device(device)
        if wanted.type != "cpu" and not torch.accelerator.is_available():
            made = super().__new__(cls)  # for its seed
        else:
            made = super().__new__(cls, wanted)
        rng_draws.made[made._cdata] = made
        return made  # type: ignore[no-any-return]

    def __init__(self, device: object = "cpu") -> None:
        self._device = torch.device(device) if torch.device(device).type != super().device.type else None
        # By engine, for all its processes; and what shows a slice of them the same memory.
        self._states: dict[Any, Any] = {}
        self._parts: dict[DeviceMesh, Any] = {}
        here = recorder() if recorders else None
        self._made_in = weakref.ref(here) if here is not None else None

    @property
    def device(self) -> torch.device:
        found: torch.device = self._device or super().device
        return found

    def manual_seed(self, seed: int) -> Generator:
        super().manual_seed(seed)
        self._seeded()
        return self

    def seed(self) -> int:
        seed: int = super().seed()
        self._seeded()
        return seed

    def get_state(self) -> torch.Tensor:
        mesh = mesh_of_operations()
        if mesh is None:
            return super().get_state()
        return self.state_at(mesh.place(get_active_stream())).clone()

    def set_state(self, new_state: torch.Tensor) -> Generator:
        if is_distributed(new_state):
            with torch.no_grad():
                self.state_at(new_state._record.place).copy_(new_state)
            return self
        super().set_state(new_state)
        place = self._begin_anew()
        if place is not None:
            with torch.no_grad():
                self.state_at(place).copy_(constant(place, new_state))
        return self

    def clone_state(self) -> Generator:
        """Another in the same state, here and in the processes."""
        with _disable_current_modes():
            clone = Generator.__new__(Generator, super().device)
            clone.__init__(super().device)  # type: ignore[misc]
            _Plain.set_state(clone, super().get_state())
        clone._device = self._device
        for engine, state in self._states.items():
            if not engine.ended:
                with torch.no_grad():
                    clone._states[engine] = state.clone()
        return clone

    def __deepcopy__(self, memo: object) -> Generator:
        return self.clone_state()

    def get_offset(self) -> int:
        self._refuse("get_offset")
        return super().get_offset()  # type: ignore[no-any-return]

    def set_offset(self, offset: int) -> Generator:
        self._refuse("set_offset")
        super().set_offset(offset)
        return self

    # --- on meshes

    def state_at(self, place: StreamPlacement) -> Any:
        """Its state in the processes at `place`, a distributed tensor; made of the state here on first use."""
        engine, mesh = place.engine, place.mesh
        found = self._parts.get(mesh)
        if found is not None:
            if recorders and (here := recorder()) is not None:
                here.read((found,))
            return found
        for other in [other for other in self._states if other.ended]:
            self._forget(other)
        whole = self._states.get(engine)
        # It is to be changed outside of inference mode too.
        with self._before_recording(), torch.inference_mode(False), torch.no_grad():
            if whole is None:
                whole = self._states[engine] = self._new_state(engine.root.place(place.stream))
            if mesh is not engine.root:
                whole = _part(whole, mesh)
        self._parts[mesh] = whole
        if recorders and (here := recorder()) is not None:
            here.read((whole,))
        return whole

    @contextlib.contextmanager
    def _before_recording(self) -> Iterator[None]:
        """Keeps what is issued in it out of the recording that is going on, as if it had been there before: a replay
        goes on drawing where the call before ended. Not so for a generator that the recorded function makes itself."""
        here = recorder() if recorders else None
        if here is None or not here.replays or (self._made_in is not None and self._made_in() is here):
            yield
            return
        thread = next(thread for thread, one in recorders.items() if one is here)
        del recorders[thread]
        try:
            yield
        finally:
            recorders[thread] = here

    def _new_state(self, place: StreamPlacement) -> Any:
        if self._device is None:
            return constant(place, super().get_state())
        return rng.issue(place, "new_device_generator", (), (super().initial_seed(),), (DEVICE_BYTES,))[0]

    def _seeded(self) -> None:
        place = self._begin_anew()
        if place is not None:
            rng.issue(place, "seed_generator", (self.state_at(place),), (super().initial_seed(),), (), mutates=(0,))

    def _begin_anew(self) -> StreamPlacement | None:
        """Forgets states that are not the active mesh's. Where there is one to change in place, so that recordings which
        draw from it stay true; a recording has to see the change."""
        mesh = mesh_of_operations()
        for engine in [engine for engine in self._states if mesh is None or engine is not mesh.client]:
            self._forget(engine)
        if mesh is None or not (mesh.client in self._states or recorders):
            return None
        return mesh.place(get_active_stream())

    def _forget(self, engine: TensorEngine) -> None:
        self._states.pop(engine, None)
        self._parts = {mesh: state for mesh, state in self._parts.items() if mesh.client is not engine}

    def _refuse(self, what: str) -> None:
        if mesh_of_operations() is not None:
            raise RuntimeError(
                f"torch.Generator.{what}() is a number of each process of the active mesh: use get_state() and set_state()"
            )


def _part(whole: Any, mesh: DeviceMesh) -> Any:
    """The same memory in the processes of `mesh`, a slice."""
    record = whole._record
    place = mesh.place(record.place.stream)
    engine = place.engine
    signature = engine.define("generator of a slice", OpCall("aten.alias.default", [TensorHole(0)], {}, None, ()))
    part = make(TensorRecord(engine.run(place, signature, (record.ref,), (), 1), record.meta, place, record.storage))
    share(record, part._record)
    return part
