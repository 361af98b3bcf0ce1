"""Helpers that tests of several folders share: a kind of helper a file. Fixtures made of them are in tests/conftest.py.

Tests import from here and from helper modules of their own folder, never from test files or conftests:
tests/test_imports.py checks that.
"""
