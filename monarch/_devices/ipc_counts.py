"""The counts by which torch knows whether memory that a process shares by CUDA IPC is still open in another.

Each `_share_cuda_` sets a count of its own to 1, in a file of the process that shares: /dev/shm/torch_<pid>_... Whoever
opens the memory takes 1 off when it closes it; then torch lets the memory be used again (torch/multiprocessing/
cuda_multiprocessing.md). Whoever is killed first takes nothing off, and torch does not notice: the memory would be kept to
the end of its process. So a count is looked at here before it is taken off in the name of the dead: torch reads a count
below 0 as a huge one and keeps the memory for good.
"""

from __future__ import annotations

import os
import struct

_FOLDER = "/dev/shm"
_COUNT = struct.Struct("=q")
_HEADER = 64  # bytes before the counts: at::RefcountedMapAllocator's own (map_alloc_alignment, ATen/MapAllocator.h)
_COUNTS = 10000  # in a file (CUDA_IPC_REF_COUNTER_FILE_SIZE, torch/csrc/CudaIPCTypes.h)


def remove(file: bytes, folder: str = _FOLDER) -> None:
    """Removes the file of a process that has ended: nobody reads its counts any more. It goes by its whole name, which has
    a random part: other containers may share the folder and number their processes alike.
    """
    name = os.fsdecode(file).removeprefix("/")
    if name.startswith("torch_") and "/" not in name:
        try:
            os.unlink(os.path.join(folder, name))
        except OSError:  # it is gone, or another user's
            pass


def count(file: bytes, number: int, folder: str = _FOLDER) -> int:
    """The count with that number in the file of that name, as `_share_cuda_` gives both.

    0 where the file is gone: torch takes it away with its last count. -1 where it does not look as torch's do today.
    """
    name = os.fsdecode(file).removeprefix("/")
    if not name.startswith("torch_") or "/" in name or not 0 <= number < _COUNTS:
        return -1
    try:
        with open(os.path.join(folder, name), "rb") as counts:
            if os.fstat(counts.fileno()).st_size != _HEADER + _COUNTS * _COUNT.size:
                return -1
            read = os.pread(counts.fileno(), _COUNT.size, _HEADER + number * _COUNT.size)
            return int(_COUNT.unpack(read)[0])
    except FileNotFoundError:
        return 0
    except (OSError, struct.error):
        return -1
