"""Kinds of sockets, one a file. `base` says what each must offer."""
