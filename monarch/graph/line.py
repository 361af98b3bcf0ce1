"""Tasks that wait until a graph has room for another execution."""

from __future__ import annotations

from collections.abc import Callable

_Place = list[Callable[[], object]]


class WaitingTasks:
    """The line of tasks that wait, first come first served. On any thread: each operation is one step of a list."""

    def __init__(self) -> None:
        self._places: list[_Place] = []

    @property
    def empty(self) -> bool:
        return not self._places

    def join(self, wake: Callable[[], object]) -> _Place:
        """Takes the last place. `wake` is called when it may be its turn, on any thread, also when it is not."""
        place = [wake]
        self._places.append(place)
        return place

    def is_first(self, place: _Place) -> bool:
        first = self._places[:1]
        return bool(first) and first[0] is place

    def leave(self, place: _Place) -> None:
        self._places.remove(place)

    def wake(self) -> None:
        """Wakes who is first."""
        self._wake(self._places[:1])

    def wake_all(self) -> None:
        self._wake(list(self._places))

    def _wake(self, places: list[_Place]) -> None:
        for (wake,) in places:
            try:
                wake()
            except RuntimeError:  # its event loop was closed, and nobody waits there any more
                continue
