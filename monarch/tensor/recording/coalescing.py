"""`with monarch.coalescing():` what is issued in the block is sent together when it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from monarch.tensor.controller import misuse
from monarch.tensor.controller.issued import IssuedCommand
from monarch.tensor.controller.records import DROPPED, TensorStorage, recorder
from monarch.tensor.recording.recorder import CommandHolder


@contextlib.contextmanager
def coalescing() -> Iterator[None]:
    """Keeps back what this thread issues on distributed tensors until the outermost block ends; then it is sent at
    once.

    When an exception leaves that block, nothing of it is done: tensors made in it count as dropped. Fetching inside is
    a NotImplementedError. Inside `compile` and a `function` that records, it does nothing. A block of more than 65,536
    commands is a RuntimeError, as one that ends by an exception. A remote function whose results have to be found out
    first (the first call with propagate="cached") sends what there is so far.
    """
    if recorder() is not None:
        yield
        return
    held = CommandHolder(_issue)
    try:
        with held:
            yield
            _issue(held.notes)  # while nothing that they name may be deleted
    except BaseException:
        _abandon(held)
        raise


def _issue(notes: list[IssuedCommand]) -> None:
    """Each engine's in one go, in the order in which they were issued."""
    for engine in dict.fromkeys(noted.place.engine for noted in notes):
        engine.issue([noted for noted in notes if noted.place.engine is engine])
    notes.clear()


def _abandon(held: CommandHolder) -> None:
    made = {ref for noted in held.notes for ref in range(noted.ident, noted.ident + noted.results)}
    why = f"the end of the coalescing block that made it, by an exception\n{misuse.here(3)}"
    for weak in held.made:
        record = weak()
        if record is not None and record.ref in made:
            record.storage = TensorStorage()
            record.storage.flags, record.storage.why = DROPPED, why
            record.ref = -1
