"""Models in parts, a part a process."""
