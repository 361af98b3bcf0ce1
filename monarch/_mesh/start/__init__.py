"""How host agents and processes come to be."""
