"""Modules that older programs import as `monarch.NAME`: `monarch/__init__.py` adds this folder to the package's path."""
