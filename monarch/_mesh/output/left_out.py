"""Output that had to be left out, because nobody took it: whose, and how much. Pure."""

from __future__ import annotations

SOURCES = 1000  # that are counted apart; the others together
_NAMED = 4  # in a note


class LeftOut:
    """`why` ends each note: what holds the output up."""

    def __init__(self, why: str) -> None:
        self._why = why
        self._sizes: dict[str, int] = {}

    def add(self, source: str, size: int) -> None:
        if source not in self._sizes and len(self._sizes) >= SOURCES:
            source = "others"
        self._sizes[source] = self._sizes.get(source, 0) + size

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def take(self) -> str:
        """Returns what is to be shown in the place of what was left out; "" when nothing was. Begins anew."""
        sizes, self._sizes = self._sizes, {}
        if not sizes:
            return ""
        most = sorted(sizes, key=lambda source: -sizes[source])[:_NAMED]
        named = ", ".join(most) + (f" and {len(sizes) - _NAMED} more" if len(sizes) > _NAMED else "")
        return f"... {shown_size(sum(sizes.values()))} of output from {named} not shown: {self._why}\n"


def shown_size(size: int) -> str:
    """`12 MB`, in steps of a thousand."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size} {unit}"
        size = (size + 500) // 1000
    return f"{size} GB"
