"""Streams to the owner's process: bytes go from memory to socket to memory."""
