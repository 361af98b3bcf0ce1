"""Names for `monarch.graph`, which calls endpoints without messages: no package outside of this distribution uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch._mesh.actors.feeding import (
    ActorsWatch,
    EndpointFacts,
    FedCall,
    call_each,
    call_for,
    check_bound,
    cut,
    endpoint_facts,
    expect_end,
    is_own,
    open_stream_to,
    ordered,
    own_instance,
    sender_name,
    take_streams,
)
from monarch._runtime.future import Source, check_timeout, make_future
from monarch._runtime.remote_errors import decode_answer
from monarch._wire.codec import decode, encode_call, encode_value

if TYPE_CHECKING:
    from monarch._runtime.streams import Stream as Stream  # noqa: PLC0414

__all__ = [
    "ActorsWatch",
    "EndpointFacts",
    "FedCall",
    "Source",
    "call_each",
    "call_for",
    "check_bound",
    "check_timeout",
    "cut",
    "decode",
    "decode_answer",
    "encode_call",
    "encode_value",
    "endpoint_facts",
    "expect_end",
    "is_own",
    "make_future",
    "open_stream_to",
    "ordered",
    "own_instance",
    "sender_name",
    "take_streams",
]
