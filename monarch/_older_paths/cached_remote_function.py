"""Autograd functions that run in the processes of a mesh."""

from __future__ import annotations

from monarch.tensor.remote.autograd import remote_autograd_function

__all__ = ["remote_autograd_function"]
