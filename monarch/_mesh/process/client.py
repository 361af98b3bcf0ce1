"""The root program: becomes a client on first use, and ends everything it started when it ends.

Nothing starts at import. The first use of the runtime in a process that is not one of ours starts a host agent, and while
that begins to run, loads and starts the rest: see `running_client`. `shutdown_context`, run at exit at the latest, ends all.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from monarch._errors import ClientClosedError
from monarch._linux.locks import Lock
from monarch._linux.maker import at_exit
from monarch._mesh import plugins
from monarch._mesh.output import log_prefix
from monarch._mesh.start.client_agent import start_agent
from monarch._runtime import standard_streams
from monarch._runtime.context import home, set_home, start_client_with
from monarch._runtime.future import Future, Slot, done_future, make_future
from monarch._runtime.loop import start_thread
from monarch.config import settings

if TYPE_CHECKING:
    from monarch._mesh.process.running_client import Client
    from monarch._runtime.proc import Proc

_EXIT_BUDGET = 1.0  # seconds that processes get at exit before they are killed

_lock = Lock()
_client: Client | None = None
_closed: Future[None] | None = None


def start() -> Proc:
    """Makes this process a client, once; returns its Proc."""
    global _client
    with _lock:
        known = home()
        if known is not None:
            return known
        if _closed is not None:
            raise ClientClosedError("shutdown_context() ran in this process: the client cannot be started again")
        standard_streams.secure()
        agent = start_agent()
        try:
            from monarch._mesh.process.running_client import Client  # a tenth of a second, in which the agent begins

            client = Client(agent)
        except BaseException:
            agent.abandon()
            raise
        _client = client
        set_home(client.proc)
        at_exit(_at_exit)
    client.warm_up()
    log_prefix.install()
    plugins.client_started(client)
    return client.proc


start_client_with(start)


def _attach_notebook(client: Client) -> None:
    if "IPython" in sys.modules:
        from monarch._mesh.process import notebook

        notebook.attach(client.printer, client.proc)


plugins.when_client_starts(_attach_notebook)


def _end(timeout: float) -> None:
    try:
        shutdown_context(timeout).get(2 * timeout)
    except (TimeoutError, RuntimeError):
        pass


plugins.end_client_with(_end)


def client() -> Client | None:
    """The client of this process, if it has one."""
    return _client


def shutdown_context(host_timeout: float | None = None) -> Future[None]:
    """Stops everything this process's client started, then the client. Begins at once; runs at exit by itself.

    Processes get `host_timeout` seconds (default: `process_exit_timeout`) for their cleanup before they are killed.
    ValueError unless it is finite, >= 0 and < 2**64. Later calls return a finished Future; without a client nothing
    happens. Afterwards every use of the runtime raises ClientClosedError.
    """
    global _closed
    if host_timeout is not None and not 0 <= host_timeout < 2**64:  # NaN fails both comparisons
        raise ValueError(f"invalid host_timeout {host_timeout!r}: expected a finite number of seconds, 0 or more")
    with _lock:
        if _closed is not None or _client is None or _client.proc.pid != os.getpid():
            return done_future()
        slot = Slot("the end of all that this program has started")
        _closed = make_future(slot)
        client = _client
    timeout = settings.process_exit_timeout() if host_timeout is None else host_timeout

    def run() -> None:
        try:
            client.shutdown(timeout)
        except BaseException as exc:
            slot.fail(exc)
        else:
            slot.set(None)

    try:
        start_thread(run, "monarch-shutdown")
    except RuntimeError:  # Python 3.12 starts no thread at exit
        run()
    return _closed


def _at_exit() -> None:
    try:
        shutdown_context(_EXIT_BUDGET).get(_EXIT_BUDGET + 4.0)
    except (TimeoutError, RuntimeError):
        pass
