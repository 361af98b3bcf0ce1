"""One process's part in a checkpoint of torch.distributed.checkpoint: it writes and reads parts of tensors.

The planning that torch does with collectives is done by the controller, which knows the layout of every tensor. So no process
group is needed, and a process only writes what it was told to, or reads what overlaps with its own parts. The files are those
of torch's FileSystemWriter: any program reads them with torch.distributed.checkpoint.

They hold pickles. Files that somebody else may have written are read as data: tensors, and values of plain types. What would
run code as it is read is an error there.
"""

from __future__ import annotations

import glob
import io
import os
import pickle
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from monarch._linux import private_files
from monarch.tensor import placements
from monarch.tensor.placements import Part, Placement
from monarch.tensor.worker import current

_EXTRA = "checkpoint"


@dataclass(frozen=True)
class CheckpointEntry:
    """A tensor of a checkpoint: its name, the shape of the whole, and which part this process has."""

    name: str
    whole: tuple[int, ...]
    part: Part


@dataclass(frozen=True)
class PlacedShard:
    """A distributed tensor of a checkpoint: its name, the shape and bytes of each part, and how it is divided."""

    name: str
    shape: tuple[int, ...]
    nbytes: int
    placement: Placement


class ReadPlan:
    """The tensors of a checkpoint on a mesh of `sizes`. Each process works out its own part of it."""

    def __init__(self, tensors: Sequence[PlacedShard], sizes: Mapping[str, int]) -> None:
        self.tensors = list(tensors)
        self.sizes = dict(sizes)

    def entries(self, place: int) -> list[CheckpointEntry]:
        """Returns what the process at `place` in the mesh has of each."""
        where = list(placements.coordinates(self.sizes))[place]
        return [
            CheckpointEntry(
                each.name,
                placements.whole_shape(each.shape, each.placement, self.sizes, each.name),
                placements.part(each.shape, each.placement, self.sizes, where),
            )
            for each in self.tensors
        ]

    def writes(self, place: int) -> list[bool]:
        """Returns which of them it writes."""
        chosen = placements.writers([(each.placement, each.nbytes) for each in self.tensors], self.sizes)
        return [each[place] for each in chosen]


@dataclass
class WrittenParts:
    """The writes of a process: torch's WriteResults, and what the checkpoint has to say of each tensor."""

    results: list[object]
    tensors: dict[str, Any]  # name -> (TensorProperties, whole shape)
    chunks: list[tuple[str, Part]]


@dataclass
class FoundCheckpoint:
    """The contents of a checkpoint: shape and dtype of each tensor, the values that are no tensors, the numbers of
    scalars, and where in nested dicts and lists a name was (empty where the writer did not say)."""

    tensors: dict[str, tuple[tuple[int, ...], torch.dtype]]
    values: dict[str, Any]
    scalars: dict[str, torch.Tensor]
    paths: dict[str, tuple[Any, ...]]


class CheckpointError(OSError):
    """A process could not write or read its part of a checkpoint."""


def begin(path: str, overwrite: bool) -> None:
    """Before anybody writes: a checkpoint that is in the folder is refused, or is none from here on, and its files go.
    FileExistsError, CheckpointError."""
    if not os.path.exists(os.path.join(path, _INDEX)):
        return  # and should there be one a moment later, it is not begun anew, but written over
    if not overwrite:
        raise FileExistsError(
            f"there is a checkpoint in {path} (host {socket.gethostname()}): save into a folder of its own, or with "
            f"overwrite=True"
        )
    try:
        with private_files.OutputFolder(path) as folder:
            os.remove(os.path.join(folder.path, _INDEX))
            for old in glob.glob(os.path.join(folder.path, "__*.distcp")):
                os.remove(old)
    except OSError as exc:
        raise failed(exc, "replace", path) from exc


_INDEX = ".metadata"  # the name that torch's FileSystemWriter gives to what it writes last


def stage(number: int, plan: ReadPlan, place: int, tensors: Sequence[torch.Tensor]) -> None:
    """Copies to the CPU what this process writes of checkpoint `number`: the program may change the tensors after this."""
    _staged()[number] = [
        (entry, tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format))
        for entry, writes, tensor in zip(plan.entries(place), plan.writes(place), tensors, strict=True)
        if writes
    ]


def forget(number: int) -> None:
    """Forgets a checkpoint that will not be written."""
    _staged().pop(number, None)


def _staged() -> dict[int, list[tuple[CheckpointEntry, torch.Tensor]]]:
    found: dict[int, list[tuple[CheckpointEntry, torch.Tensor]]] = current.worker().executor.extras.setdefault(
        _EXTRA, {}
    )
    return found


def write(number: int, path: str, values: bytes | None) -> WrittenParts:
    """Writes what was staged into the folder `path`, and `values`, which are no tensors: a dict by name, as torch.save writes
    it. CheckpointError."""
    return _write(path, _staged().pop(number), values, current.worker().executor.rank)


def _write(
    path: str, own: Sequence[tuple[CheckpointEntry, torch.Tensor]], values: bytes | None, rank: int
) -> WrittenParts:
    from torch.distributed.checkpoint.planner import SavePlan

    data = _Data()
    items = [data.tensor(entry, tensor) for entry, tensor in own]
    if values is not None:
        items += [data.value(name, value) for name, value in _unpickled(values).items()]
    try:
        os.makedirs(path, exist_ok=True)
        results: list[object] = []
        if items:
            with private_files.OutputFolder(path) as folder:
                # The number of a plan among all is what torch makes the names of files of: __<rank>_<n>.distcp.
                writer = _writer(folder, rank == 0, per_thread_copy_ahead=0)  # all of it is on the CPU
                plan = writer.prepare_global_plan([SavePlan([])] * rank + [SavePlan(items)])[-1]
                results = writer.write_data(plan, data).wait()  # all that it asks of a planner
    except Exception as exc:
        raise failed(exc, "write", path) from exc
    properties = {
        item.index.fqn: (item.tensor_data.properties, tuple(item.tensor_data.size))
        for item in items
        if item.tensor_data
    }
    return WrittenParts(results, properties, [(entry.name, entry.part) for entry, _ in own])


def _writer(folder: private_files.OutputFolder, coordinates: bool, **options: Any) -> Any:
    """Returns torch's writer of checkpoints, which writes into that folder, and through no link in it."""
    from torch.distributed.checkpoint import FileSystemWriter

    @contextmanager
    def new_file(path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with open(folder.open_output(os.path.basename(path)), mode) as file:
            yield file

    writer = FileSystemWriter(folder.path, overwrite=True, **options)
    writer.fs.create_stream = new_file
    writer.set_up_storage_writer(coordinates)
    return writer


class _Data:
    """The data to write, as torch's writer asks for it (a SavePlanner's `resolve_data`)."""

    def __init__(self) -> None:
        self._found: dict[Any, Any] = {}

    def tensor(self, entry: CheckpointEntry, tensor: torch.Tensor) -> Any:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        begin, shape = map(torch.Size, entry.part)
        index = MetadataIndex(entry.name, begin)
        self._found[index] = tensor
        data = TensorWriteData(
            ChunkStorageMetadata(begin, shape), TensorProperties.create_from_tensor(tensor), torch.Size(entry.whole)
        )
        return WriteItem(index, WriteItemType.SHARD, tensor_data=data)

    def value(self, name: str, value: object) -> Any:
        from torch.distributed.checkpoint.metadata import MetadataIndex
        from torch.distributed.checkpoint.planner import BytesIOWriteData, WriteItem, WriteItemType

        data = io.BytesIO()
        torch.save(value, data)
        index = MetadataIndex(name)
        self._found[index] = data
        return WriteItem(index, WriteItemType.BYTE_IO, bytes_io_data=BytesIOWriteData(len(data.getbuffer())))

    def resolve_data(self, item: Any) -> Any:
        found = self._found[item.index]
        if isinstance(found, io.BytesIO):
            found.seek(0)
        return found


def _unpickled(values: bytes) -> dict[str, Any]:
    # The program's own, from its own process.
    found: dict[str, Any] = torch.load(io.BytesIO(values), weights_only=False)
    return found


def finish(path: str, parts: Sequence[WrittenParts], values: Sequence[str], paths: dict[str, Any]) -> None:
    """Makes a checkpoint of what all processes have written: its index, which readers look for, comes last."""
    from torch.distributed.checkpoint.metadata import (
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        TensorStorageMetadata,
    )

    found: dict[str, Any] = {name: BytesStorageMetadata() for name in values}
    for part in parts:
        for name, (properties, whole) in part.tensors.items():
            found.setdefault(name, TensorStorageMetadata(properties, torch.Size(whole), []))
    for part in parts:
        for name, (begin, shape) in part.chunks:
            found[name].chunks.append(ChunkStorageMetadata(torch.Size(begin), torch.Size(shape)))
    try:
        with private_files.OutputFolder(path) as folder:
            writer = _writer(folder, True)
            writer.finish(Metadata(found, planner_data=paths), [part.results for part in parts])
    except Exception as exc:
        raise failed(exc, "finish", path) from exc


def look(path: str) -> FoundCheckpoint:
    """Returns what the checkpoint in `path` has. CheckpointError."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    metadata = _index(path)
    tensors = {}
    for name, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            tensors[name] = (tuple(entry.size), entry.properties.dtype)
    items = [_value_item(name) for name in metadata.state_dict_metadata if name not in tensors]
    files = dict.fromkeys(metadata.storage_data[item.storage_index].relative_path for item in items)
    into = _Into(
        {name: torch.empty((), dtype=dtype) for name, (shape, dtype) in tensors.items() if not shape},
        _strangers(path, files),
    )
    for name in into.tensors:
        items += _part_items(metadata, CheckpointEntry(name, (), ((), ())))
    _read(path, metadata, items, into)
    paths = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
    return FoundCheckpoint(tensors, into.values, into.tensors, paths)


def read(number: int, path: str, entries: Sequence[CheckpointEntry], tensors: Sequence[torch.Tensor]) -> None:
    """Fills the parts of this process, as read `number`. Only what overlaps with them is read. CheckpointError."""
    metadata = _index(path)
    items = [item for entry in entries for item in _part_items(metadata, entry)]
    into = _Into({entry.name: tensor for entry, tensor in zip(entries, tensors, strict=True)})
    current.worker().executor.extras[_READING] = number, into
    try:
        with torch.no_grad():
            _read(path, metadata, items, into)
    finally:
        into.tensors.clear()  # what remains says how far it came


_READING = "checkpoint that is read"


def read_so_far(number: int) -> int:
    """Returns the bytes that this process has filled in read `number`; 0 where it has not come to it."""
    last, into = current.worker().executor.extras.get(_READING, (0, None))
    return into.filled if into is not None and last == number else 0


def _part_items(metadata: Any, entry: CheckpointEntry) -> list[Any]:
    """Returns what to read for a part: those of the checkpoint's that overlap with it."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

    begin, shape = map(torch.Size, entry.part)
    there = metadata.state_dict_metadata[entry.name]
    found: list[object] = create_read_items_for_chunk_list(entry.name, there, [ChunkStorageMetadata(begin, shape)])
    return found


class _Into:
    """The destination of what was read, as torch's reader asks for it (a LoadPlanner's part). `stranger`: why somebody else
    may have written it, "" if nobody can have."""

    def __init__(self, tensors: dict[str, torch.Tensor], stranger: str = "") -> None:
        self.tensors = tensors
        self._stranger = stranger
        self.values: dict[str, Any] = {}
        self.filled = 0  # bytes of tensors

    def resolve_tensor(self, item: Any) -> torch.Tensor:
        found = self.tensors[item.dest_index.fqn].detach()
        for dim, (begin, length) in enumerate(zip(item.dest_offsets, item.lengths, strict=True)):
            found = found.narrow(dim, begin, length)
        return found

    def commit_tensor(self, item: object, tensor: torch.Tensor) -> None:
        self.filled += tensor.nbytes

    def load_bytes(self, item: Any, value: io.BytesIO) -> None:
        name = item.dest_index.fqn
        try:
            self.values[name] = torch.load(value, weights_only=bool(self._stranger))
        except pickle.UnpicklingError:
            if not self._stranger:
                raise
            raise _refused(f"{name!r} is an object that would run code", self._stranger) from None


def _value_item(name: str) -> Any:
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

    nowhere = torch.Size((0,))
    index = MetadataIndex(name)
    return ReadItem(LoadItemType.BYTE_IO, index, nowhere, index, nowhere, nowhere)


def _index(path: str) -> Any:
    """Returns torch's Metadata. CheckpointError."""
    from torch.distributed.checkpoint import FileSystemReader

    try:
        stranger = _strangers(path, [_INDEX])
        if not stranger:
            return FileSystemReader(path).read_metadata()
        with os.fdopen(private_files.open_regular(os.path.join(path, _INDEX)), "rb") as file:
            return _IndexReader(file, stranger).load()
    except Exception as exc:
        rank = current.worker().executor.rank
        if isinstance(exc, FileNotFoundError):
            raise CheckpointError(
                f"rank {rank} on host {socket.gethostname()} finds no checkpoint in {path}: there is no .metadata file, "
                f"which a save writes last. A checkpoint is in a folder that all processes see"
            ) from exc
        raise failed(exc, "read", path) from exc


def _strangers(path: str, names: Iterable[str]) -> str:
    """Returns why somebody else may have written one of these files; "" if only this user or root can have."""
    try:
        for name in names:
            os.close(private_files.open_to_read(os.path.join(path, name)))
    except private_files.UntrustedFileError as exc:
        return str(exc)
    return ""


class _IndexReader(pickle.Unpickler):
    """Reads the index of a checkpoint that somebody else may have written: classes that hold what it says, and no others."""

    def __init__(self, file: Any, stranger: str) -> None:
        super().__init__(file)
        self._stranger = stranger

    def find_class(self, module: str, name: str) -> Any:
        found = getattr(sys.modules.get(module), "__dict__", {}).get(name)
        if module in _INDEX_MODULES:
            if isinstance(found, type) and found.__module__ == module:
                return found
        elif isinstance(found, torch.dtype) or (module, name) in _INDEX_NAMES:
            return super().find_class(module, name)
        raise _refused(f"its index names {module}.{name}, which it has no use for", self._stranger)


_INDEX_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_INDEX_NAMES = (
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    *((module, name) for module in ("pathlib", "pathlib._local") for name in ("PosixPath", "PurePosixPath")),
)


def _refused(what: str, stranger: str) -> pickle.UnpicklingError:
    return pickle.UnpicklingError(
        f"{what}, and {stranger}. What others may write is read as data alone, tensors and plain values; if you trust it, "
        f"copy the checkpoint into a folder of your own, and read it there"
    )


def _read(path: str, metadata: Any, items: Sequence[object], into: _Into) -> None:
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.planner import LoadPlan

    if not items:
        return
    reader = FileSystemReader(path)
    try:
        reader.set_up_storage_reader(metadata, False)
        reader.read_data(LoadPlan(list(items)), into).wait()
    except Exception as exc:
        raise failed(exc, "read", path) from exc


def failed(error: BaseException, verb: str, path: str) -> CheckpointError:
    """Returns the error for the program: which process on which host, and what the system said."""
    rank = current.worker().executor.rank
    found: Any = error
    while found is not None and not isinstance(
        found, OSError
    ):  # torch's writer raises errors of its own from the system's
        found = found.__cause__ or found.__context__
    where = f"rank {rank} on host {socket.gethostname()} could not {verb} the checkpoint in {path}"
    if found is None or not found.errno:
        return CheckpointError(f"{where}: {type(error).__name__}: {error}")
    # It was opened by a name that this process alone knows.
    file = re.sub("^/proc/self/fd/[0-9]+", lambda _: path, str(found.filename or ""))
    return CheckpointError(found.errno, f"{where}: {found.strerror}{f': {file}' if file else ''}")
