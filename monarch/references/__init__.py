"""References: results that stay in the process where they were made, and tasks on the processes of a mesh.

    ref = actor.make.keep.call_one(x)   # an ObjectRef, at once
    other.use.call_one(ref).get()       # there: ref.get(), or await ref

    counting       who holds which reference (pure)
    stored_value   values, in memory that other processes map
    object_ref     the handle
    outcomes       values and errors on their way
    pinning        which processes keep copies
    reader         values, fetched
    store          the references of one process
    keep           `endpoint.keep`, `put`
    fetched        endpoints that take values
    scheduling     which process runs which task (pure)
    tasks          `submit`, `@task`

It uses the public API, and a program that does not import it pays nothing.
"""

from __future__ import annotations

from monarch.references.errors import ReferenceLimitError, ReferenceLost
from monarch.references.fetched import Fetched
from monarch.references.keep import put
from monarch.references.object_ref import ObjectRef
from monarch.references.tasks import TaskFunction, as_completed, submit, task, values, wait

__all__ = [
    "Fetched",
    "ObjectRef",
    "ReferenceLimitError",
    "ReferenceLost",
    "TaskFunction",
    "as_completed",
    "put",
    "submit",
    "task",
    "values",
    "wait",
]


def __dir__() -> list[str]:
    return sorted(__all__)
