"""The limit of waits for what certainly comes, if nothing is broken."""

from __future__ import annotations

TIMEOUT = 300  # seconds: on a machine with much else to do a process may get no turn for a minute
GRACE = 8  # in which what is to end must be gone: 2 by the contract, at rest; those who look only now and then take 10
