"""The class users derive from, its endpoints, and how a running actor handles messages."""
