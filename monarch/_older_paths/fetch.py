"""Values of distributed tensors come back."""

from __future__ import annotations

from monarch.tensor.controller.fetch import fetch_shard, inspect, show
from monarch.tensor.remote.remote_function import call_on_shard_and_fetch

__all__ = ["call_on_shard_and_fetch", "fetch_shard", "inspect", "show"]
