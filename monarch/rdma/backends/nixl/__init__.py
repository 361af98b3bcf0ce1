"""NIXL moves the bytes."""
