"""A program with all its doors open: `python -m tests.fuzz.program`. It says where they are, and ends with its stdin."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from typing import Any

import monarch.admin
import monarch.telemetry
from monarch.actor import Actor, current_rank, endpoint, this_host
from monarch.telemetry.starting import FOLDER, run_folder


class Worker(Actor):
    @endpoint
    def work(self) -> int:
        return current_rank().rank

    @endpoint
    def stop_here(self) -> None:
        breakpoint()  # noqa: T100


def call_again(workers: Any) -> None:
    """Has a rank come to its breakpoint, again and again."""
    while True:
        with contextlib.suppress(Exception):  # a pdb may be told to end the endpoint
            workers.stop_here.call().get()


def main() -> None:
    telemetry = monarch.telemetry.start(dashboard=True, dashboard_port=0, snapshot_interval_secs=1.0)
    admin = monarch.admin.start("127.0.0.1:0")
    workers: Any = this_host().spawn_procs({"gpus": 1}).spawn("workers", Worker)
    for _ in range(200):  # rows
        workers.work.call().get()
    threading.Thread(target=call_again, args=(workers,), daemon=True).start()
    telemetry.flush()
    folder = run_folder()
    urls = {"api": telemetry.url, "dashboard": telemetry.dashboard_url, "admin": admin.url}
    said = {"pid": os.getpid(), "observer": telemetry._pid, "folder": folder, "urls": urls, "observer_in": FOLDER}
    print("\n" + json.dumps(said), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
