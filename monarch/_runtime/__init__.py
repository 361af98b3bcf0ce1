"""Inside one process: mailboxes, ports, routing, running actors, noticing their end.

Does not know meshes: an actor here is a thread with a mailbox and a behaviour.
"""
