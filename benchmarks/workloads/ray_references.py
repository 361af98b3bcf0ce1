"""The same in Ray's object store."""

from __future__ import annotations

from typing import Any

import _references
import ray
from _workload import Params, Samples, main


@ray.remote
class Reader:
    def look(self, value: Any) -> int:
        return int(value[::4096].sum())


def references(params: Params) -> Samples:
    ray.init(num_cpus=params["readers"], object_store_memory=5 << 30, include_dashboard=False, log_to_driver=False)
    readers = [Reader.remote() for _ in range(params["readers"])]
    return _references.measured(
        ray.put, ray.get, lambda ref: ray.get([reader.look.remote(ref) for reader in readers]), params
    )


if __name__ == "__main__":
    main({"references": references})
