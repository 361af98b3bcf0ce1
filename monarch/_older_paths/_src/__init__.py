"""Paths of another implementation that libraries import from: aliases, made from one table."""

from __future__ import annotations

from monarch._older_paths import _alias_modules

_alias_modules.install()
