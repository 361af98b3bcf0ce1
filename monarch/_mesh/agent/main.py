"""The beginning of a host agent, in a fresh interpreter.

A fork server for what the first processes will need begins before the rest of the agent is even imported: torch takes a
second or two, and they wait for it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys

from monarch._mesh.start import forkserver
from monarch._runtime import standard_streams

_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """argv: the modules that the first processes will need, with commas; and descriptors, first that of the socket of whoever
    starts us, where the options wait. The others are only kept."""
    preload = [name for name in sys.argv[1].split(",") if name]
    descriptors = [int(argument) for argument in sys.argv[2:]]
    standard_streams.secure()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # Fork servers are forked before anything is open here, and must not keep the client's socket, whose end we wait for.
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    begun = forkserver.start(preload, close=descriptors)[0] if preload else None

    gc.disable()  # imports leave next to no garbage
    from monarch._mesh.agent import host_agent  # takes a tenth of a second

    gc.enable()
    host_agent.run(descriptors, preload, begun)
