"""The start of host agents and processes."""
