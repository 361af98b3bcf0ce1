"""Events between the streams of one worker: one stream waits until another has come to a point."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from monarch._linux.locks import Condition, Lock

if TYPE_CHECKING:
    from monarch.tensor.signature import Runner
    from monarch.tensor.worker.executor import Executor


class Events:
    """The events by which streams of one worker wait for each other. Each `post` lets one `wait` for the same number
    go on."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._posted: dict[int, deque[Any]] = {}
        self._closed = False
        self._device = torch.accelerator.is_available()

    def post(self, number: int) -> None:
        """All that this thread's stream was given before is done, or will be when the device gets there."""
        event = None
        if self._device:
            event = torch.Event()
            event.record()
        with self._changed:
            self._posted.setdefault(number, deque()).append(event)
            self._changed.notify_all()

    def wait(self, number: int) -> None:
        """Until it was posted. RuntimeError when the worker ends first."""
        with self._changed:
            self._changed.wait_for(lambda: number in self._posted or self._closed)
            if number not in self._posted:
                raise RuntimeError("the tensor engine has ended")
            waiting = self._posted[number]
            event = waiting.popleft()
            if not waiting:
                del self._posted[number]
        if event is not None:
            event.wait()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


_making = Lock()


def events_of(executor: Executor) -> Events:
    """Returns the events of a worker."""
    with _making:
        found: Events = executor.extras.setdefault("events", Events())
    return found


class PostEvent:
    """The signature of an event: its number is the Run's."""

    event = "post"  # for recordings, which have both of an event or none
    keeps: tuple[int, ...] | None = ()
    mutates: tuple[int, ...] = ()

    def name(self) -> str:
        return "an event between streams"

    def prepare(self, executor: Executor) -> Runner:
        events = events_of(executor)
        return lambda tensors, numbers: events.post(int(numbers[0]))


class AwaitEvent(PostEvent):
    """The signature of waiting for one."""

    event = "await"

    def prepare(self, executor: Executor) -> Runner:
        events = events_of(executor)
        return lambda tensors, numbers: events.wait(int(numbers[0]))


class AliasTensor:
    """The signature of a borrow: the same memory under another reference."""

    keeps: tuple[int, ...] | None = None
    mutates: tuple[int, ...] = ()

    def name(self) -> str:
        return "borrow"

    def prepare(self, executor: Executor) -> Runner:
        return lambda tensors, numbers: tensors[0].detach()
