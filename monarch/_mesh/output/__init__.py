"""What processes write, on its way to people."""
