"""Folders of running programs, each of which is one user's alone, for packages that have sockets of their own."""

from __future__ import annotations

from monarch._mesh.start.run_directory import remove_with_run, user_folder

__all__ = ["remove_with_run", "user_folder"]
