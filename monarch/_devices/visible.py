"""The cards that the visible-devices variables leave a process, read as torch reads them. Pure.

CUDA_VISIBLE_DEVICES lists cards by number, uuid or the beginning of one. Under ROCm there are three: ROCR_VISIBLE_DEVICES
filters first and renumbers what is left; of that HIP_VISIBLE_DEVICES chooses, or CUDA_VISIBLE_DEVICES where that is not
set. The rules, odd as some are, are those of `torch.cuda._parse_visible_devices` and what it calls: the first entry that is
no card ends the list, a card that is named twice empties it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

Vendor = Literal["cuda", "hip", "cpu"]
Entries = list[int] | list[str]

VARIABLES: dict[Vendor, tuple[str, ...]] = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "hip": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "cpu": (),
}

# What to set. ROCR_VISIBLE_DEVICES is never: what filters first stays the user's. HIP reads HIP_VISIBLE_DEVICES, programs
# written for CUDA read CUDA_VISIBLE_DEVICES.
SET: dict[Vendor, tuple[str, ...]] = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "hip": ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "cpu": (),
}


def listed(kind: Vendor, environ: Mapping[str, str]) -> Entries | None:
    """Returns what the variables list; None where none is set. ValueError for what torch refuses."""
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if kind == "hip":
        hip, rocr = environ.get("HIP_VISIBLE_DEVICES"), environ.get("ROCR_VISIBLE_DEVICES")
        if rocr is not None and hip is not None and len(hip.split(",")) > len(rocr.split(",")):
            raise ValueError(
                f"HIP_VISIBLE_DEVICES={hip} lists more devices than ROCR_VISIBLE_DEVICES={rocr}, of which it chooses: unset "
                f"one of them"
            )
        if rocr is not None and hip is None:
            return list(range(len(rocr.split(","))))
        text = hip if hip is not None else text
    return None if text is None else parse(text)


def parse(text: str) -> Entries:
    """Parses one variable's list."""
    for prefix in ("GPU-", "MIG-"):
        if text.startswith(prefix):
            return _uuids(text, prefix)
    numbers: list[int] = []
    for entry in text.split(","):
        number = _leading_number(entry.strip())
        if number in numbers:
            return []
        if number < 0:
            break
        numbers.append(number)
    return numbers


def _uuids(text: str, prefix: str) -> list[str]:
    found: list[str] = []
    for entry in text.split(","):
        if entry in found:
            return []
        if not entry.startswith(prefix):
            break
        found.append(entry)
    return found


def _leading_number(text: str) -> int:
    """Reads as C's strtoul does: "1gpu" is 1. -1 for what begins with no number."""
    end = 0
    while end < len(text) and (text[end].isdigit() or (end == 0 and text[end] in "+-")):
        end += 1
    try:
        return int(text[:end])
    except ValueError:
        return -1


def shown(kind: Vendor, environ: Mapping[str, str], cards: Sequence[str]) -> list[int] | None:
    """Returns which of `cards` (their uuids, in the driver's order) a process sees, in its own order. None where that
    cannot be told: MIG devices are not cards. ValueError as in `listed`."""
    entries = listed(kind, environ)
    if entries is None:
        return list(range(len(cards)))
    return _chosen(kind, entries, cards)


def physical(kind: Vendor, environ: Mapping[str, str], cards: Sequence[str]) -> list[int] | None:
    """Returns as `shown` does, with what ROCR_VISIBLE_DEVICES has renumbered numbered back."""
    if kind != "hip" or "ROCR_VISIBLE_DEVICES" not in environ:
        return shown(kind, environ, cards)
    left = _chosen(kind, parse(environ["ROCR_VISIBLE_DEVICES"]), cards)
    if left is None:
        return None
    rest = {name: text for name, text in environ.items() if name != "ROCR_VISIBLE_DEVICES"}
    chosen = shown(kind, rest, [cards[index] for index in left])
    return None if chosen is None else [left[index] for index in chosen]


def _chosen(kind: Vendor, entries: Entries, cards: Sequence[str]) -> list[int] | None:
    found: list[int] = []
    for entry in entries:
        if isinstance(entry, int):
            if entry >= len(cards):
                break
            found.append(entry)
            continue
        if entry.startswith("MIG-"):
            return None
        # ROCm's uuids are written with the prefix in variables, and without it where the driver tells them.
        wanted = entry.replace("GPU-", "", 1) if kind == "hip" else entry
        matching = [index for index, uuid in enumerate(cards) if uuid.startswith(wanted)]
        if len(matching) != 1:
            break
        if matching[0] in found:
            return []
        found.append(matching[0])
    return found


def problem(kind: Vendor, environ: Mapping[str, str], cards: Sequence[str]) -> str:
    """Returns what is wrong with the variables on a machine with these cards ("" for an unknown uuid), in a sentence;
    "" when nothing is, or nobody knows."""
    try:
        entries = listed(kind, environ)
    except ValueError as exc:
        return str(exc)
    if entries is None or not cards or (not any(cards) and entries and isinstance(entries[0], str)):
        return ""
    name = next(name for name in _DECIDES if name in environ and name in VARIABLES[kind])
    said, chosen = f"{name}={environ[name]}", _chosen(kind, entries, cards)
    if chosen is None or len(chosen) == len(entries) > 0:
        return ""
    if not chosen and _chosen(kind, parse(environ[name].partition(",")[0]), cards):
        return f"{said} names a device twice, which hides all of them"
    if not entries:
        return ""
    gone = entries[len(chosen)]
    what = "no device, or several," if isinstance(gone, str) else "no device"
    rest = f"only the {len(chosen)} before it" if chosen else "nothing"
    return f"{said} names {gone}, which is {what} here (this host has {len(cards)}): torch sees {rest}"


_DECIDES = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")  # the first that is set


def rotated(kind: Vendor, environ: Mapping[str, str], cards: Sequence[str], first: int) -> dict[str, str]:
    """The environment in which a process sees the same cards, those from the `first` on before the others; {} where nothing
    changes, or where the cards cannot be told for certain."""
    try:
        entries, chosen = listed(kind, environ), shown(kind, environ, cards)
    except ValueError:
        return {}
    if not chosen or len(chosen) < 2 or not first % len(chosen):
        return {}
    every = list(range(len(chosen))) if entries is None else entries[: len(chosen)]
    at = first % len(every)
    text = ",".join(map(str, (*every[at:], *every[:at])))
    return dict.fromkeys(SET[kind], text)
