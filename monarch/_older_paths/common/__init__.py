"""Older names of what is in `monarch.tensor`."""
