"""The software of a host, told when two hosts greet, and whether the two can work together.

Functions and classes cross as cloudpickle makes them, with byte code in them: another minor version of Python, or another
implementation, would run foreign byte code, which ends in nonsense or a crash.
"""

from __future__ import annotations

import functools
import sys

import msgspec

_PACKAGES = ("pymonarch", "cloudpickle", "msgspec", "torch")  # for people: only Python itself is compared


class Software(msgspec.Struct, array_like=True, frozen=True):
    """`python`: implementation and version ("cpython 3.11.7")."""

    python: str
    interpreter: str = ""
    packages: dict[str, str] = {}

    def __str__(self) -> str:
        packages = ", ".join(f"{name} {version}" for name, version in self.packages.items())
        return f"{self.python} ({self.interpreter}; {packages})"


@functools.cache
def ours() -> Software:
    """Returns that of this process. Looked up once, by those that have links to other hosts: it reads files."""
    from importlib import metadata

    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name == "pymonarch":  # run from its source
                packages[name] = str(getattr(sys.modules.get("monarch"), "__version__", "unknown"))
    version = ".".join(map(str, sys.version_info[:3]))
    return Software(f"{sys.implementation.name} {version}", sys.executable, packages)


def mismatch(here: str, our: Software, there: str, their: Software) -> str:
    """Returns why the two hosts cannot work together, or ""."""
    if _minor(our.python) == _minor(their.python):
        return ""
    return (
        f"{here} runs {our}, and {there} runs {their}: functions and classes cross as byte code, which one minor version of "
        f"Python cannot run of another. Give all hosts and the client the same ({_minor(our.python)} or "
        f"{_minor(their.python)})"
    )


def _minor(python: str) -> str:
    """ "cpython 3.11" of "cpython 3.11.7"."""
    return ".".join(python.split(".")[:2])
