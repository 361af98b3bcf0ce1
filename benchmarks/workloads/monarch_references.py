"""References of ours."""

from __future__ import annotations

from typing import Any

import _references
from _workload import Params, Samples, main

from monarch.actor import Actor, endpoint, this_host
from monarch.references import Fetched, put


class Reader(Actor):
    @endpoint
    def look(self, value: Fetched[Any]) -> int:
        return int(value[::4096].sum())


def references(params: Params) -> Samples:
    procs = this_host().spawn_procs({"gpus": params["readers"]})
    readers = procs.spawn("readers", Reader)
    try:
        return _references.measured(put, lambda ref: ref.get(), lambda ref: readers.look.call(ref).get(), params)
    finally:
        procs.stop().get()


if __name__ == "__main__":
    main({"references": references})
