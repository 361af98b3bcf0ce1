"""`log`: from the program's values to an event of the recorder, and to sinks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import Any

from monarch._runtime import recorder as recorders
from monarch._runtime.context import home, root_of
from monarch._runtime.future import running
from monarch._runtime.recorder import LOGGED, VALUES
from monarch._text import sendable
from monarch.metrics import passing
from monarch.metrics.passing import NAME, NAMES, STEPS, Pairs

Sink = Callable[[int, Pairs, str, int], object]  # step, values, mesh, rank

logger = logging.getLogger("monarch")
_names: dict[str, str] = {}  # as given -> as sent
sinks: list[Sink] = []


def log(*, step: int, **values: Any) -> None:
    """Logs numbers of this rank at a step: `log(step=3, loss=0.5, **{"grad/norm": norm})`.

    From actors, from ranks of `monarch run` and from the program itself, in any thread. Where telemetry runs each is a row of
    the table `metrics`, with mesh and rank, a second or two later, and part of a curve that is folded over ranks; sinks of
    this process get it at once. Else it goes nowhere. It costs a few microseconds, and waits for nothing.

    A value is a number, or has `__float__`: a tensor of one element, on a GPU when what computes it has ended. NaN and
    infinity are kept as they are, and told apart in curves. ValueError for a tensor of several elements, for more than 64
    values, and for a step below 0; TypeError for texts and other things, and for a step that is no whole number.
    A process has 1,000 names of 200 characters; values under further names are dropped, which is said once. What waits to
    leave, and the rows, have the bounds of telemetry: 50,000 calls a process, 4 million rows.

    Since 0.2.0.
    """
    pairs = checked(step, values)
    recorder = recorders.active
    if recorder is None and not _looked:
        _look()
    if not pairs or (recorder is None and not sinks):
        return
    mesh, rank = who()
    if recorder is not None:
        recorder.add((LOGGED, int(step), pairs, mesh, rank, monotonic()))
    for sink in list(sinks):
        try:
            sink(int(step), pairs, mesh, rank)
        except Exception as exc:  # of a package or a disk: the training goes on
            if sink in sinks:
                sinks.remove(sink)
            logger.warning("monarch.metrics: nothing more is written by %s, which has failed: %r", sink, exc)


_looked: list[bool] = []  # for somebody who takes what a script logs


def _look() -> None:
    _looked.append(True)
    found = passing.inherited()
    if found is not None:
        sinks.append(found)


def checked(step: Any, values: dict[str, Any]) -> Pairs:
    """Returns the values as numbers, under names fit to send."""
    if isinstance(step, bool) or not hasattr(step, "__index__"):
        raise TypeError(f"step is a whole number, such as that of the batch: got {step!r}")
    if not 0 <= step.__index__() < STEPS:
        raise ValueError(f"step is a number from 0 to 2**62, got {step!r}")
    if len(values) > VALUES:
        raise ValueError(f"a call of log takes up to {VALUES} values, got {len(values)}: call it several times")
    pairs = []
    for name, value in values.items():
        known = _names.get(name) or _named(name)
        if known:
            pairs.append((known, value if type(value) is float else _number(name, value)))
    return tuple(pairs)


def _number(name: str, value: Any) -> float:
    if isinstance(value, (str, bytes)) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(
            f"{name} is logged as a number, not as {type(value).__name__}: texts belong into the log (logging), counts and "
            "measurements here"
        )
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is larger than a float can be") from None
    except (TypeError, ValueError, RuntimeError) as exc:
        raise ValueError(
            f"{name} is logged as one number, and this {type(value).__name__} is none ({exc}): log its mean() or its norm()"
        ) from None


def _named(name: str) -> str:
    """Returns the name as it is sent; "" when there are too many."""
    if len(_names) >= NAMES:
        if len(_names) == NAMES:
            _names[""] = ""  # said once
            logger.warning(
                "monarch.metrics: %r and further names are dropped: a process has %d. What varies, as a rank or a layer of "
                "many, belongs into fewer names",
                name,
                NAMES,
            )
        return ""
    _names[name] = sendable(name, NAME) or "(no name)"
    return _names[name]


def who() -> tuple[str, int]:
    """Returns the mesh and the rank that this code works for; of a plain thread those of its process's actor."""
    now = running.get()
    if now is not None and now.instance.behaviour is not None:
        return now.instance.name, now.instance.rank
    proc = home()
    found = None if proc is None else root_of(proc)
    if found is None and proc is not None:
        found = next((each for each in list(proc.actors.values()) if not each.system), None)
    return ("client", 0) if found is None or found.behaviour is None else (found.name, found.rank)
