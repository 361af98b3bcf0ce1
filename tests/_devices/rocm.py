"""A machine with AMD cards that is not here: the kernel's files, and stubs of ROCm's libraries, compiled on the spot."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

# HIP as far as it exports memory. Descriptors are those of memory files; an address below 4096 is refused. Like the real one
# it keeps the last error until somebody takes it.
HIP = """
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/mman.h>
static int last, device;
int hipGetDevice(int *out) { *out = device; return 0; }
int hipSetDevice(int wanted) { device = wanted; return 0; }
int hipPeekAtLastError(void) { return last; }
int hipGetLastError(void) { int was = last; last = 0; return was; }
const char *hipGetErrorString(int code) { return code == 1 ? "invalid argument" : "unknown"; }
#ifndef OLD
int hipMemGetHandleForAddressRange(void *handle, void *start, size_t size, int type, unsigned long long flags) {
    if ((size_t)start < 4096 || type != 1 || flags) return last = 1;
    *(int *)handle = memfd_create("dma-buf", 0);
    return 0;
}
#endif
"""

HSA = """
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
int hsa_status_string(int code, const char **text) { *text = "HSA_STATUS_ERROR_INVALID_ARGUMENT"; return 0; }
#ifndef OLD
int hsa_amd_portable_export_dmabuf(const void *start, size_t size, int *file, uint64_t *offset) {
    if ((size_t)start < 4096) return 0x1001;
    *file = memfd_create("dma-buf", 0);
    *offset = (size_t)start % 65536;  /* allocations begin at multiples of that */
    return 0;
}
#endif
"""


def library(folder: Path, name: str, source: str, *options: str) -> Path:
    """`source` as a shared library."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.c").write_text(source)
    made = folder / name
    subprocess.run(
        [compiler, "-shared", "-fPIC", *options, "-o", made, folder / f"{name}.c"],
        check=True,
        timeout=60,
        capture_output=True,
    )
    return made


def tree(root: Path, cards: list[str], partitions: int = 1, unreadable: int = -1) -> Path:
    """The kernel's list of a machine with two CPUs and these cards (their uuids), each cut into `partitions`."""
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    for cpu in range(2):
        _node(nodes / str(cpu), 0, "cpu_cores_count 96\nsimd_count 0\n")
    number = 2
    for card, uuid in enumerate(cards):
        for part in range(partitions):
            unique, location = int(uuid, 16), (0x05 + 0x10 * card) << 8 | part
            text = (
                f"cpu_cores_count 0\nsimd_count {1216 // partitions}\nlocation_id {location}\ndomain 0\n"
                f"drm_render_minor {128 + number}\nnum_xcc {8 // partitions}\nunique_id {unique}\n"
            )
            _node(nodes / str(number), 1000 + number, text)
            if number - 2 == unreadable:  # as where a control group hides the card
                (nodes / str(number) / "properties").unlink()
            number += 1
    return root


def _node(folder: Path, gpu_id: int, properties: str) -> None:
    folder.mkdir(parents=True)
    (folder / "gpu_id").write_text(f"{gpu_id}\n")
    (folder / "properties").write_text(properties)
