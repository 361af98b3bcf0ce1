"""Texts that a terminal would obey, or that do not look like what they are; and whether a text is none of these."""

from __future__ import annotations

import unicodedata

HOSTILE = (
    "\x1b[2J\x1b[H",  # an empty window
    "\x1b]0;title\x07",
    "\x1b]52;c;cm0=\x07",  # into the clipboard
    "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\",
    "\x1bP+q544e\x1b\\",  # a question, whose answer is typed
    "\x1b[6n",
    "\x9b31m",
    "\x9d0;title\x9c",
    "\x1b[31m",
    "\x1b[8mhidden",
    "\x08\x08",
    "\x0e",
    "\r",
    "\n",
    "\n0 things are wrong",
    "\u202eyp.exe",
    "\u2066\u2069",
    "\u200b\u200d\ufeff",
    "\u2028",
    "\u3164\u115f",
    "\U000e0041",
    "\udc9b",
    "\x00",
    "\x7f",
    "中文",
    "e\u0301",
    "\t",
)

# All of them in a name, as a message can carry it.
NAME = "".join(HOSTILE).replace("\udc9b", "")


def fit(text: str) -> bool:
    """Returns whether a terminal shows it as it is: no character of it is a control, a format mark or a lone surrogate,
    but for ends of lines and tabs."""
    seen = (unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp") or char in "\n\t" for char in text)
    return all(seen) and not {"\u3164", "\u115f"} & set(text)
