"""Adverbs as they travel, and how messages of each are spread over hosts."""

from __future__ import annotations

from monarch._mesh.casts.plan import CALL_HOLD, STREAM_HOLD
from monarch.config import settings

# KEEP: the result stays in the actor's process, for whom it is told there (`rref`). KEEP_COUNTED: it does so under a
# reference that is counted (`keep`). MAP_CHUNK: the argument is a list of items, each of which the endpoint takes. Numbers
# stay as they are: recordings of actors have them.
CALL, CALL_ONE, CHOOSE, STREAM, BROADCAST, SEND, KEEP, KEEP_COUNTED, MAP_CHUNK = range(9)

KEPT = frozenset({KEEP, KEEP_COUNTED})
TO_ONE = frozenset({CALL_ONE, MAP_CHUNK})  # whose message is for one rank that the caller has named

# Seconds that answers from other hosts may be held to travel together; of other adverbs they come one by one.
HOLD = {CALL: CALL_HOLD, STREAM: STREAM_HOLD}


def few(adverb: int) -> int:
    """Receivers on other hosts from which on they share a message. Nobody waits for a broadcast, so the sender's time counts;
    a caller that waits for answers waits for two agents more (docs/scale.md)."""
    return settings.tree_calls_from() if adverb in HOLD else settings.tree_casts_from()
