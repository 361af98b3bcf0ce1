"""Colours for terminals: not here."""

raise ImportError("monarch.tools.colors is not here: print the escape codes, or use a library such as rich")
