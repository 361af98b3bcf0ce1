"""Output of processes, on its way to people."""
