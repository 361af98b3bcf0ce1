"""The names of `monarch.rdma`: all there, cheap to import, errors that old and new programs catch."""

from __future__ import annotations

import subprocess
import sys

import pytest

# ruff: noqa: SIM905 - words in a text are easier to compare with a page of documentation than a list literal

NAMES = """
    RDMABuffer RDMAAction get_rdma_backend is_ibverbs_available is_rdma_available
    RDMATcpFallbackWarning RDMAReadTransferWarning RDMAWriteTransferWarning
""".split()
ERRORS = {
    "RDMAError": Exception,
    "BufferDroppedError": Exception,
    "OwnerEndedError": Exception,
    "RDMATimeoutError": TimeoutError,
    "RDMAUnavailableError": RuntimeError,
    "RDMAMemoryError": ValueError,
    "RDMASizeError": ValueError,
    "RDMAReadOnlyError": ValueError,
}


@pytest.mark.parametrize("name", [*NAMES, *ERRORS])
def test_monarch_rdma_has(name: str) -> None:
    import monarch

    assert getattr(monarch.rdma, name) is not None
    assert name in monarch.rdma.__all__


@pytest.mark.parametrize(("name", "base"), ERRORS.items())
def test_an_error_is_also_what_programs_catch(name: str, base: type[Exception]) -> None:
    from monarch import rdma

    error = getattr(rdma, name)("what happened")
    assert isinstance(error, rdma.RDMAError)
    assert isinstance(error, base)
    assert str(error) == "what happened"


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("Warning")])
def test_a_warning_is_shown_once_unless_the_program_says_otherwise(name: str) -> None:
    code = (
        "import warnings, monarch.rdma\n"
        f"kind = monarch.rdma.{name}\n"
        "assert issubclass(kind, Warning)\n"
        "warnings.warn('slow', kind)\nwarnings.warn('slow', kind)\nwarnings.warn('slow', kind)\n"
        "warnings.simplefilter('error')\n"
        "try:\n    warnings.warn('slow', kind)\nexcept kind:\n    print('raised')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.count("slow") == 1
    assert done.stdout == "raised\n"


def test_bytes_are_moved_without_torch_and_importing_starts_nothing() -> None:
    code = """
import sys, threading
import monarch.rdma
light = [name for name in ("torch", "numpy", "asyncio", "cloudpickle") if name in sys.modules]
print(light, threading.active_count())
from monarch.actor import Actor, endpoint, this_host
from monarch.rdma import RDMABuffer

class Owner(Actor):
    @endpoint
    def make(self):
        self.data = bytearray(b"0123456789" * 1000)
        return RDMABuffer(memoryview(self.data))

    @endpoint
    def loaded(self):
        return [name for name in ("torch", "numpy") if name in sys.modules]

if __name__ == "__main__":
    procs = this_host().spawn_procs()
    owner = procs.spawn("owner", Owner)
    buffer = owner.make.call_one().get()
    into = bytearray(10_000)
    buffer.read_into(into).get()
    buffer.write_from(b"abc").get()
    print(into == b"0123456789" * 1000, buffer.path, owner.loaded.call_one().get())
    procs.stop().get()
    print([name for name in ("torch", "numpy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[] 1\nTrue process_vm []\n[]\n"
