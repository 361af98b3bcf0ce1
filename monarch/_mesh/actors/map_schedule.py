"""Items spread over ranks (`Endpoint.map`): which rank runs which item, which result is given next. Pure.

Items are numbered as they are pulled. A rank takes the next one as soon as it has room. A rank that died takes none until
it answers a probe; its items are sent again, to other ranks, as often as they may be. Bounds: `in_flight` items a rank, and
`AHEAD` times as many items in all that are pulled and not given.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

AHEAD = 4  # results may wait for a slow item, or a slow reader, while others go on
_FIRST_PROBE, _LAST_PROBE = 0.05, 1.0  # seconds between two probes of a rank that died: doubled each time
_PATIENCE = 10.0  # seconds until a rank is lost, where another process decides whether it comes back


class Assigned(NamedTuple):
    """An item that a rank is to run. `fresh`: it is the next one to be pulled."""

    item: int
    rank: int
    fresh: bool


class _Down:
    """A rank that died: since when, how often it was probed, whether the last probe said that nobody puts another in its
    place, and whether that is certain."""

    __slots__ = ("lost", "probes", "since", "unwanted")

    def __init__(self, since: float, lost: bool) -> None:
        self.since = since
        self.probes = 0
        self.unwanted = lost
        self.lost = lost


class MapSchedule:
    """One map over `ranks` ranks. The caller carries out what `assign` says and tells what came of it; `now` is its clock."""

    def __init__(self, ranks: int, in_flight: int, retries: int, ordered: bool) -> None:
        self.pulled = 0
        self.given = 0
        self.done = 0  # with a result or an error
        self.failed = 0  # with an error
        self.sent_again = 0
        self.exhausted = False  # no more items are pulled
        self._in_flight = in_flight
        self._retries = retries
        self._ordered = ordered
        self._window = AHEAD * ranks * in_flight
        # Each rank as often as it has room for an item.
        self._free = deque(rank for _ in range(in_flight) for rank in range(ranks))
        self._load = [0] * ranks
        self._down: dict[int, _Down] = {}
        self._rank_of: dict[int, int] = {}  # of items in flight
        self._again: deque[int] = deque()  # items to be sent again
        self._tries: dict[int, int] = {}  # of those sent again
        self._avoid: dict[int, set[int]] = {}  # ranks on which they failed
        self._ready: deque[int] = deque()  # done and not given, in the order in which they were done
        self._waiting: set[int] = set()  # the same, where an earlier item is not done

    # --- what to do

    def assign(self) -> Assigned | None:
        """The next item to send; None when there is no room, or none to send."""
        if not self._free:
            return None
        for index in self._again:
            rank = self._rank_for(index)
            if rank is not None:
                return Assigned(index, rank, False)
        if self.exhausted or self.pulled - self.given >= self._window:
            return None
        return Assigned(self.pulled, self._free[0], True)

    def _rank_for(self, index: int) -> int | None:
        """A rank with room on which the item has not failed; any, when none of those that live is such."""
        avoid = self._avoid[index]
        found = next((rank for rank in self._free if rank not in avoid), None)
        if found is None and all(rank in avoid or rank in self._down for rank in range(len(self._load))):
            return self._free[0]
        return found

    def next_given(self) -> int | None:
        """The item whose result is next; None when it is not there."""
        if not self._ready:
            return None
        self.given += 1
        return self._ready.popleft()

    @property
    def over(self) -> bool:
        """Every item was pulled and given."""
        return self.exhausted and self.given == self.pulled

    @property
    def stuck(self) -> bool:
        """No rank lives or comes back, and nothing is left to wait for."""
        return len(self._down) == len(self._load) and not self._rank_of and all(d.lost for d in self._down.values())

    @property
    def in_flight(self) -> int:
        return len(self._rank_of)

    def is_done(self, index: int) -> bool:
        """Returns whether it has its result, or its error, and was not given."""
        return index in self._waiting or index in self._ready

    # --- what came of it

    def sent(self, assigned: Assigned) -> None:
        index, rank, fresh = assigned
        if fresh:
            self.pulled += 1
        else:
            self._again.remove(index)
            self.sent_again += 1
        self._free.remove(rank)
        self._load[rank] += 1
        self._rank_of[index] = rank

    def unsendable(self, index: int) -> None:
        """The item that was to be sent just now cannot be: it counts as pulled, and failed."""
        if index == self.pulled:
            self.pulled += 1
        else:
            self._again.remove(index)
        self._settle(index, failed=True)

    def answered(self, index: int, failed: bool = False) -> None:
        """The item has its result, or its error."""
        self._leave_rank(index)
        self._settle(index, failed)

    def raised(self, index: int) -> bool:
        """It failed in a way that may be tried again. Whether it is: otherwise the item has failed."""
        return self._try_again(index, self._leave_rank(index))

    def died(self, index: int, now: float, lost: bool) -> tuple[bool, int | None]:
        """Its rank died; `lost` when nobody puts another in its place. Whether it is tried again, and the rank if it is to
        be probed from now on."""
        rank = self._leave_rank(index)
        known = self._down.get(rank)
        if known is None:
            self._down[rank] = _Down(now, lost)
            self._free = deque(free for free in self._free if free != rank)
        else:
            known.lost = known.lost or lost
        return self._try_again(index, rank), rank if known is None else None

    def probed(self, rank: int, alive: bool, now: float, coming_back: bool | None = None) -> float:
        """A rank was probed. Seconds until it is to be probed again; 0 when it is alive. `coming_back`: whether another takes
        its place; None when that is not known here."""
        down = self._down[rank]
        if alive:
            del self._down[rank]
            self._free.extend([rank] * (self._in_flight - self._load[rank]))
            return 0.0
        down.probes += 1
        if coming_back is None:
            down.lost = down.lost or now - down.since >= _PATIENCE
        else:  # its owner may just have heard of its death, and be about to restart it: asked twice
            down.lost = down.unwanted and not coming_back
            down.unwanted = not coming_back
        return min(_FIRST_PROBE * 2.0 ** min(down.probes - 1, 10), _LAST_PROBE)

    def give_up(self) -> None:
        """Gives up an item that was to be sent again: no rank is left for it."""
        while self._again:
            self._settle(self._again.popleft(), failed=True)

    # --- its own

    def _leave_rank(self, index: int) -> int:
        rank = self._rank_of.pop(index)
        self._load[rank] -= 1
        if rank not in self._down:
            self._free.append(rank)
        return rank

    def _try_again(self, index: int, rank: int) -> bool:
        if not self.may_be_sent_again(index):
            self._settle(index, failed=True)
            return False
        self._tries[index] = self._tries.get(index, 0) + 1
        self._avoid.setdefault(index, set()).add(rank)
        self._again.append(index)
        return True

    def may_be_sent_again(self, index: int) -> bool:
        return self._tries.get(index, 0) < self._retries

    def tries(self, index: int) -> int:
        """Returns how often it was sent."""
        return self._tries.get(index, 0) + 1

    def _settle(self, index: int, failed: bool) -> None:
        self.done += 1
        self.failed += failed
        self._tries.pop(index, None)
        self._avoid.pop(index, None)
        if not self._ordered:
            self._ready.append(index)
            return
        self._waiting.add(index)
        due = self.given + len(self._ready)
        while due in self._waiting:
            self._waiting.remove(due)
            self._ready.append(due)
            due += 1
