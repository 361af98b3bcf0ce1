"""Unpickling on any thread, also while other threads import; and of messages that everybody has dropped.

By reading some messages something is counted, so they are read even if nobody wants to know what they say. Their sender adds
`MARK`, a buffer of one byte, as the last; those of objects are larger (`codec.OUT_OF_BAND`). A call without buffers has that
byte behind its pickle, which ends with another and is read no further. Who has such a message keeps its body as an
UnreadBody, which tells when it is dropped before `codec.decode` has read it.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

from monarch._wire.frame import Buffer

_NAMES = b"\x93"  # the opcode STACK_GLOBAL: from protocol 4 on no class or function is named without it
MARK_BEHIND = b"\x01"
MARK = memoryview(MARK_BEHIND)


def loads(body: Buffer, buffers: Sequence[Buffer] = ()) -> Any:
    """Does as `pickle.loads` for protocol 4 and later, and imports packages before their modules."""
    if type(body) is bytes and _NAMES not in body:
        return pickle.loads(body, buffers=buffers)
    return Unpickler(io.BytesIO(body), buffers=buffers).load()


class Unpickler(pickle.Unpickler):
    """An unpickler that imports packages before their modules; see `import_packages`."""

    def find_class(self, module: str, name: str) -> Any:
        if module not in sys.modules:
            import_packages(module)
        if name == "subimport" and module == "cloudpickle.cloudpickle":
            return _subimport
        return super().find_class(module, name)


def import_packages(module: str) -> None:
    """Imports the packages that a module lies in, the outermost first.

    Python takes the lock of a module before it imports the package. Two threads that import different modules of one
    package whose `__init__` imports both then wait for each other; Python finds that out, and gives one of them a module
    that is half there: ImportError. Who takes the package first holds nothing that its `__init__` may want.
    """
    place = module.find(".")
    while place > 0:
        importlib.import_module(module[:place])
        place = module.find(".", place + 1)


def _subimport(name: str) -> Any:
    """Does as cloudpickle's, by which functions that are sent whole name modules."""
    import_packages(name)
    return importlib.import_module(name)


def is_marked(buffers: Sequence[Buffer]) -> bool:
    return len(buffers[-1]) == 1


class UnreadBody(bytes):
    """The body of a marked message. `left` gets it when it is dropped unread: on any thread, in the middle of anything."""

    was_read: bool
    buffers: Sequence[Buffer]
    left: Callable[[UnreadBody], None]

    def __new__(cls, body: Buffer, buffers: Sequence[Buffer], left: Callable[[UnreadBody], None]) -> UnreadBody:
        made = super().__new__(cls, body)
        made.was_read, made.buffers, made.left = False, buffers, left
        return made

    def __del__(self) -> None:
        if not self.was_read:
            self.left(self)
