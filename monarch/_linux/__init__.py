"""What Linux offers, for every part: /proc, local sockets, files that nobody else has written, helper processes."""
