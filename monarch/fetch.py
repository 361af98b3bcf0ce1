"""Values of distributed tensors come back."""

from __future__ import annotations

from monarch.tensor.fetch import fetch_shard, inspect, show
from monarch.tensor.remote import call_on_shard_and_fetch

__all__ = ["call_on_shard_and_fetch", "fetch_shard", "inspect", "show"]
