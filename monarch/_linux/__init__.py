"""The means of Linux, for every part: /proc, local sockets, files that nobody else has written, helper processes."""
