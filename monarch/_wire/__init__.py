"""Between two processes: the bytes that cross.

Knows ids, messages, frames, connections and transports. Does not know what an actor or a mesh is.
"""
