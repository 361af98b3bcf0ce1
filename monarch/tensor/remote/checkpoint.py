"""`monarch.checkpoint`: state dicts of distributed tensors in files that torch.distributed.checkpoint reads, and out of them.

    monarch.checkpoint.save({"net": net.state_dict(), "step": 7}, "/shared/step7")
    state = monarch.checkpoint.read("/shared/step7")  # on a mesh of any size

Each process writes parts, side by side. What is planned here (which process writes which part of what) is in `placements`.
"""

from __future__ import annotations

import fnmatch
import functools
import io
import itertools
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils._python_dispatch import _disable_current_modes

from monarch.actor import Future
from monarch.actor.lowlevel import WatchedProgress, in_thread, show_waits
from monarch.tensor.controller.distribute import replicate
from monarch.tensor.controller.known_values import is_known
from monarch.tensor.controller.mesh import DeviceMesh, get_active_mesh
from monarch.tensor.controller.stream import Stream
from monarch.tensor.controller.tensor import Tensor
from monarch.tensor.failures import RemoteException
from monarch.tensor.placements import Placement, checked, local_shape, whole_shape
from monarch.tensor.remote.remote_function import Remote, call_on_shard_and_fetch
from monarch.tensor.worker import checkpoint as worker
from monarch.tensor.worker.checkpoint import CheckpointError, FoundCheckpoint, PlacedShard, ReadPlan

if TYPE_CHECKING:
    from torch.utils._pytree import PyTree


Placements = Mapping[str, Placement]  # by name, or a pattern of names as fnmatch has them

_numbers = itertools.count(1)


def save(
    state: Mapping[str, object],
    path: str | os.PathLike[str],
    placements: Placements | None = None,
    mesh: object = None,
    overwrite: bool = False,
) -> None:
    """Writes a checkpoint into the folder `path` and waits until it is whole. See `save_async`."""
    save_async(state, path, placements, mesh, overwrite).get()


def _written(where: str, total: int) -> tuple[int, int]:
    """Returns the bytes of a checkpoint's files so far, and those of its tensors. OSError until there is a folder."""
    return min(total, sum(entry.stat().st_size for entry in os.scandir(where))), total


def save_async(
    state: Mapping[str, object],
    path: str | os.PathLike[str],
    placements: Placements | None = None,
    mesh: object = None,
    overwrite: bool = False,
) -> Future[None]:
    """A Future of a checkpoint in the folder `path`, which all processes see. The processes copy their parts to the CPU, in
    order with other operations, and write them beside what follows: the tensors may be changed at once.

    `state`: nested dicts and lists of distributed tensors of one mesh, local tensors and other values (`{"net":
    net.state_dict(), "optimizer": optimizer.state_dict(), "step": 7}`); names of nested values are joined by dots. `mesh`:
    who writes when there are no distributed tensors in it; by default the active one.

    `placements` says which tensors are divided: {name or pattern: {mesh dimension: tensor dimension}}, as {"net.*.weight":
    {"tp": 0}}; the first that fits counts. Others are the same in each process, and one of them writes them: which, is spread
    over the processes by bytes. That they are the same is not checked.

    The files are those of torch.distributed.checkpoint, and `.metadata` comes last: a folder without it is no checkpoint. At
    most one checkpoint is written at a time; the next waits for it.

    Here: ValueError for names that mean two values, and for `placements` that do not fit; FileExistsError when there is a
    checkpoint already, unless `overwrite`. The Future raises CheckpointError, an OSError that names the rank, its host and
    what the system said (a full disk, say), and RemoteException for tensors that have failed.
    """
    flat, paths = _flattened(state)
    values = {name: value for name, value in flat.items() if not isinstance(value, Tensor)}
    layout = _Layout(flat, placements, mesh)
    where = os.path.abspath(path)
    number = next(_numbers)
    with layout.mesh.activate():
        with _beside.activate():
            _first(layout.mesh, worker.begin, where, overwrite)
        staged = _stage.call(number, layout.plan(), layout.tensors, layout.mesh)

    def finish() -> None:
        try:
            with layout.mesh.activate(), _beside.activate():
                try:
                    staged.get()
                    parts = list(_write.call(number, where, _saved(values), layout.mesh).get().values())
                    _first(layout.mesh, worker.finish, where, parts, list(values), paths)
                finally:
                    if not layout.mesh.client.ended:
                        _forget.broadcast(number)
        except BaseException as exc:
            _tell(exc)

    saving = in_thread(finish, "monarch-checkpoint", "a checkpoint of distributed tensors")
    far = functools.partial(_written, where, layout.bytes)
    return show_waits(saving, WatchedProgress(f"checkpoint {where}", far, of_bytes=True))


def load(
    state: object,
    path: str | os.PathLike[str],
    placements: Placements | None = None,
    mesh: object = None,
    strict: bool = True,
) -> None:
    """Fills `state`, nested dicts and lists as `save` takes them, from the checkpoint in `path`: distributed tensors in
    place, each process reading what it needs; other values are replaced in their dicts. Waits until all have it.

    The mesh may be of any size and shape, and `placements` (as in `save`) others than those of the save: a process reads what
    overlaps with its parts. A checkpoint that another program wrote with torch.distributed.checkpoint does as well. The
    dtype of a tensor stays.

    KeyError for names that the checkpoint does not have (with `strict=False` they stay what they are), ValueError for
    tensors of other shapes, both before anything is changed. CheckpointError where there is no checkpoint or a process cannot
    read it: what was to be filled counts as failed then, unless there was none.
    """
    flat, paths = _flattened(state)
    layout = _Layout(flat, placements, mesh)
    where = os.path.abspath(path)
    with layout.mesh.activate():
        values = [name for name, value in flat.items() if not isinstance(value, Tensor)]
        # Numbers that this process knows as well, as an optimizer's count of steps, are known to it afterwards too.
        scalars = [
            name for name, value in flat.items() if isinstance(value, Tensor) and not value.shape and is_known(value)
        ]
        found: FoundCheckpoint = _first(layout.mesh, worker.look, where)
        missing = [name for name in flat if name not in found.tensors and name not in found.values]
        if missing and strict:
            raise KeyError(
                f"the checkpoint in {where} does not have {_listed(missing)}. It has "
                f"{_listed([*found.tensors, *found.values])}. With strict=False they stay what they are"
            )
        layout.keep(found.tensors)
        layout.check(found.tensors, where)
        scalars = [name for name in scalars if name in found.tensors]
        layout.keep(found.tensors.keys() - set(scalars))
        _fill(layout, where)
        with torch.no_grad():
            for name in scalars:
                flat[name].copy_(found.scalars[name])
    for name in values:
        if name in found.values:
            _put(state, paths[name], found.values[name])
        elif name in found.tensors:
            raise ValueError(f"{name} is a tensor in the checkpoint in {where}, and no distributed tensor in `state`")


def read(
    path: str | os.PathLike[str], placements: Placements | None = None, mesh: object = None, device: object = "cpu"
) -> dict[str, Any]:
    """The state that was saved in `path`, in nested dicts and lists as it was: what `load_state_dict` of a module and of an
    optimizer takes. Its tensors are new ones on `device` of the active mesh, or of `mesh`; `placements` as in `load`. Keys of
    a dict that are all whole numbers, as in an optimizer's state, come back as such: the files have them as text.

    ValueError for tensors that cannot be divided so; failures as with `load`.
    """
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

    there = _mesh_of([], mesh)
    where = os.path.abspath(path)
    with there.activate():
        found: FoundCheckpoint = _first(there, worker.look, where)
        flat: dict[str, Any] = dict(found.values)
        wanted = _Wanted(placements, list(found.tensors), there)
        for name, (shape, dtype) in found.tensors.items():
            if shape:
                part = local_shape(shape, wanted[name], there.sizes, name)
                flat[name] = torch.empty(part, dtype=dtype, device=device)
            else:
                flat[name] = replicate(found.scalars[name])
        layout = _Layout({name: flat[name] for name in found.tensors if name not in found.scalars}, placements, there)
        _fill(layout, where)
    return _numbered(unflatten_state_dict(flat, {name: found.paths.get(name, (name,)) for name in flat}))  # type: ignore[no-any-return]


def _fill(layout: _Layout, where: str) -> None:
    """Lets each process read its parts."""
    if not layout.names:
        return
    number = next(_numbers)
    _read(number, where, layout.plan(), layout.tensors, layout.mesh)
    try:
        with WatchedProgress(f"reading checkpoint {where}", functools.partial(_filled, number, layout), of_bytes=True):
            _there.call(layout.tensors).get()
    except RemoteException as exc:
        _tell(exc)


def _filled(number: int, layout: _Layout) -> tuple[int, int]:
    """Returns the bytes that all processes together have filled, and those that they are to fill."""
    with layout.mesh.activate(), _asked.activate():
        done = _so_far.call(number).get()
    return sum(done.values()), len(done) * sum(tensor.nbytes for tensor in layout.tensors)


class _Wanted:
    """The placements of tensors called `names`, by what the program said of names and patterns."""

    def __init__(self, wanted: Placements | None, names: Sequence[str], mesh: DeviceMesh) -> None:
        self._wanted = {pattern: checked(value, 0, mesh.names) for pattern, value in (wanted or {}).items()}
        for pattern in self._wanted:
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                raise ValueError(f"no tensor has a name like {pattern!r}: there are {_listed(names)}")

    def __getitem__(self, name: str) -> Placement:
        return next((value for pattern, value in self._wanted.items() if fnmatch.fnmatchcase(name, pattern)), {})


class _Layout:
    """The distributed tensors of a state dict, and how they are divided."""

    def __init__(self, flat: Mapping[str, object], wanted: Placements | None, mesh: object) -> None:
        found = {name: value for name, value in flat.items() if isinstance(value, Tensor)}
        self.names = list(found)
        self.tensors: list[Tensor] = [tensor.detach() for tensor in found.values()]
        self.mesh = _mesh_of(self.tensors, mesh)
        sizes = self.mesh.sizes
        known = _Wanted(wanted, self.names, self.mesh)
        self.placements = [known[name] for name in self.names]
        self.wholes = [
            whole_shape(tensor.shape, placement, sizes, name)
            for name, tensor, placement in zip(self.names, self.tensors, self.placements, strict=True)
        ]

    @property
    def bytes(self) -> int:
        """Returns the size of the whole of them."""
        return sum(
            math.prod(whole) * tensor.element_size() for whole, tensor in zip(self.wholes, self.tensors, strict=True)
        )

    def keep(self, known: Collection[str]) -> None:
        """Forgets the tensors that are not in `known`."""
        kept = [place for place, name in enumerate(self.names) if name in known]
        for attribute in ("names", "tensors", "placements", "wholes"):
            setattr(self, attribute, [getattr(self, attribute)[place] for place in kept])

    def check(self, known: Mapping[str, tuple[tuple[int, ...], Any]], where: str) -> None:
        """ValueError for a tensor whose whole is not of the shape of the checkpoint's."""
        wrong = [
            f"{name} is {tuple(whole)} here ({tuple(tensor.shape)} in each process), and {known[name][0]} there"
            for name, tensor, whole in zip(self.names, self.tensors, self.wholes, strict=True)
            if tuple(whole) != tuple(known[name][0])
        ]
        if wrong:
            raise ValueError(
                f"tensors have other shapes than in the checkpoint in {where}: {'; '.join(wrong[:10])}. `placements` has to "
                f"say along which dimensions of the mesh a tensor is divided"
            )

    def plan(self) -> ReadPlan:
        """Returns the same, for the processes."""
        laid = [
            PlacedShard(name, tuple(tensor.shape), tensor.numel() * tensor.element_size(), placement)
            for name, tensor, placement in zip(self.names, self.tensors, self.placements, strict=True)
        ]
        return ReadPlan(laid, self.mesh.sizes)


def _mesh_of(tensors: Sequence[Tensor], mesh: object) -> DeviceMesh:
    if not tensors:
        found = get_active_mesh() if mesh is None else mesh
        found = found if isinstance(found, DeviceMesh) else getattr(found, "_device_mesh", None)
        if not isinstance(found, DeviceMesh):
            raise TypeError(f"`mesh` is a DeviceMesh or a ProcMesh, and not {mesh!r}")
        return found
    first: DeviceMesh = tensors[0].mesh
    if any(tensor.mesh is not first for tensor in tensors):
        raise ValueError(
            "the tensors of a checkpoint are on one mesh: bring them there with monarch.to_mesh, or save them apart"
        )
    return first


def _first(mesh: DeviceMesh, function: Callable[..., Any], *args: object) -> Any:
    """Returns what `function` gives in the first process of the mesh."""
    try:
        return call_on_shard_and_fetch(Remote(function, "inspect"), *args, shard=dict.fromkeys(mesh.names, 0)).get()
    except RemoteException as exc:
        _tell(exc)


def _tell(error: BaseException) -> NoReturn:
    """Raises it. What is wrong with files is raised as itself, after what the process said of it."""
    cause = error.__cause__
    if isinstance(error, RemoteException) and isinstance(cause, CheckpointError | FileExistsError):
        raise cause from error
    raise error


# --- in the processes


def _own(mesh: Any) -> int:
    """The place of this process in the mesh."""
    from monarch.tensor.worker import current

    return int(mesh.ranks.index(current.worker().executor.rank))


def _staging(number: int, plan: ReadPlan, tensors: list[Tensor], mesh: object) -> None:
    worker.stage(number, plan, _own(mesh), tensors)


def _writing(number: int, path: str, values: Any, mesh: Any) -> Any:
    return worker.write(number, path, values.data if _own(mesh) == 0 else None)


def _reading(number: int, path: str, plan: ReadPlan, tensors: list[Tensor], mesh: object) -> None:
    worker.read(number, path, plan.entries(_own(mesh)), tensors)


def _changed(number: int, path: str, plan: ReadPlan, tensors: list[Tensor], mesh: object) -> None:
    """Does what `_reading` does, as far as the program is concerned: it writes to all of them."""
    for tensor in tensors:
        tensor.zero_()


def _nothing(tensors: list[Tensor]) -> None:
    """Fails where one of the tensors has failed."""


class _Saved:
    """The values of a checkpoint that are no tensors, as torch.save writes them; None for none."""

    def __init__(self, data: bytes | None) -> None:
        self.data = data


_beside = Stream("checkpoint")  # files are written there, beside what the program does next
_asked = Stream("checkpoint progress")  # answers while files are read
_stage = Remote(_staging, "inspect")
_write = Remote(_writing, "inspect")
_forget = Remote(worker.forget, "inspect")
_read = Remote(_reading, _changed)
_so_far = Remote(worker.read_so_far, "inspect")
_there = Remote(_nothing, "inspect")


def _saved(values: dict[str, object]) -> _Saved:
    if not values:
        return _Saved(None)
    with _disable_current_modes():
        file = io.BytesIO()
        torch.save(values, file)
        return _Saved(file.getvalue())


def _flattened(state: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of nested dicts and lists by names with dots, and where each was."""
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict

    if not isinstance(state, Mapping):
        raise TypeError(f"a checkpoint is made of a dict of tensors and values, and this is a {type(state).__name__}")
    flat, paths = flatten_state_dict(dict(state))
    return flat, paths


def _numbered(tree: PyTree) -> PyTree:
    """`tree` with dicts whose keys are numbers as text keyed by these numbers."""
    if isinstance(tree, list):
        return [_numbered(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    numbers = bool(tree) and all(isinstance(key, str) and key.isdecimal() for key in tree)
    return {int(key) if numbers else key: _numbered(value) for key, value in tree.items()}


def _put(state: Any, path: Sequence[Any], value: Any) -> None:
    for step in path[:-1]:
        state = state[step]
    if isinstance(value, torch.Tensor) and isinstance(state[path[-1]], torch.Tensor):
        state[path[-1]].copy_(value)
        return
    state[path[-1]] = value


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:10])
    return f"{shown} and {len(names) - 10} more" if len(names) > 10 else shown or "nothing"


__all__ = ["CheckpointError", "Placements", "load", "read", "save", "save_async"]
