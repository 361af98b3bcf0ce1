"""Says in each log message which actor wrote it: `[actor=<who>] ` before the text.

It is done where records are made (`logging.setLogRecordFactory`), not by a filter on each handler: a record
is made once, in the thread of the code that logs, so whatever handler it meets, root's or another's, added
before or after, sees the prefix, once. A filter runs once for each handler on one shared record and would
have to tell that another was there before it, runs in the listener's thread behind a QueueHandler, and
reaches handlers added later only by patching `logging`. The price: filters on loggers see the prefix too,
and a program that sets a factory of its own later should call the one it replaces, as the documentation of
`logging` asks.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from monarch._linux.locks import Lock
from monarch._runtime.context import current, home, root_of

_lock = Lock()
_installed = False


def install() -> None:
    """Installs it in this process, from now on; once, also where a program has put its own factory around ours."""
    global _installed
    with _lock:
        if not _installed:
            _installed = True
            logging.setLogRecordFactory(PrefixingFactory(logging.getLogRecordFactory()))


def prefix() -> str:
    """The prefix for code that runs here and now; "" in no actor, and where it is switched off."""
    config = sys.modules.get("monarch.actor.config")  # not loaded: nobody has switched it off
    if config is not None and not getattr(config, "prefix_python_logs_with_actor", True):
        return ""
    now = current.get()
    if now is not None:
        instance = now.instance
    else:
        proc = home()
        found = None if proc is None else root_of(proc)
        if found is None:
            return ""
        instance = found
    return f"[actor={getattr(instance.behaviour, 'display', None) or f'<{instance.name}>'}] "


class PrefixingFactory:
    """Makes records with `make`, then puts the prefix in.

    `actor_prefix` has it alone. It is always set, "" without a prefix, so that formats may name it.
    """

    def __init__(self, make: Any) -> None:
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make(*args, **kwargs)
        said = record.actor_prefix = prefix()
        if said:
            message: Any = record.msg
            if message is not None:
                try:
                    text = message if type(message) is str else str(message)
                except Exception:
                    return record  # the handlers will meet the same error and report it in their way
                if text:
                    # With arguments the message is a format, in which the prefix must stand for itself.
                    record.msg = (said.replace("%", "%%") if record.args else said) + text
        return record
