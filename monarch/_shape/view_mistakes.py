"""What is said to a program that takes a mesh for a list."""

from __future__ import annotations

from collections.abc import Mapping


def not_subscriptable(kind: str, sizes: Mapping[str, int], index: object) -> str:
    """The text for `mesh[index]`, and for iterating, where Python asks for index 0 first."""
    mistake = f"'{kind}' object is not subscriptable, nor iterable"
    if not sizes:
        return f"{mistake}: it has no dimensions and is one rank; use it as it is"
    shown = ", ".join(f"{label}: {size}" for label, size in sizes.items())
    part = ", ".join(f"{label}={at!r}" for label, at in _coordinates(sizes, index).items())
    return f"{mistake}: its dimensions have names, {{{shown}}}. A part of it is .slice({part})"


def _coordinates(sizes: Mapping[str, int], index: object) -> dict[str, object]:
    """What was probably meant: the index along the only dimension, or the rank, else the first rank."""
    if isinstance(index, slice) and len(sizes) == 1:
        return dict.fromkeys(sizes, index)
    if isinstance(index, tuple) and len(index) == len(sizes):
        return dict(zip(sizes, index, strict=True))
    rank = index if isinstance(index, int) else 0
    found: dict[str, object] = {}
    for label, size in reversed(list(sizes.items())):
        rank, found[label] = divmod(rank, size)
    return {label: found[label] for label in sizes}
