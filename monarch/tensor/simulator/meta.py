"""`set_meta`: a value of the program's on what it issues."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


class _Tag(threading.local):
    value: Any = None


_tag = _Tag()


@contextlib.contextmanager
def set_meta(value: Any) -> Iterator[None]:
    """What this thread issues in the block is tagged with `value`: simulations show it in traces and exports and give
    it to timing functions as `task.meta`. The innermost block counts. Has no effect on real meshes."""
    before, _tag.value = _tag.value, value
    try:
        yield
    finally:
        _tag.value = before


def current_meta() -> Any:
    """The tag of this thread, None outside of `set_meta`."""
    return _tag.value
