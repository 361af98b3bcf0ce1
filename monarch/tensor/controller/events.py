"""One stream waits for another: what it is given from here on runs behind what the other was given."""

from __future__ import annotations

import itertools

from monarch.tensor.controller.stream import Stream
from monarch.tensor.controller.stream_placement import StreamPlacement
from monarch.tensor.worker.events import AwaitEvent, PostEvent

_numbers = itertools.count(1)


def follow_stream(place: StreamPlacement, stream: Stream) -> None:
    """Lets what `stream` is given from here on, on the mesh of `place`, run behind all that the stream of `place`
    was given."""
    wait(place.mesh.place(stream), post(place))


def post(place: StreamPlacement) -> int:
    engine = place.engine
    number = next(_numbers)
    engine.run(place, engine.define("post", PostEvent()), (), (number,), 0)
    return number


def wait(place: StreamPlacement, number: int) -> int:
    """The ident of the command that waits."""
    engine = place.engine
    return engine.run(place, engine.define("await", AwaitEvent()), (), (number,), 0)
