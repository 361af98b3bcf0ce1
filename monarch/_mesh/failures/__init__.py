"""Noticing that something failed, deciding what then, telling who is concerned."""
