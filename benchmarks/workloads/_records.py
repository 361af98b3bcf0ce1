"""What both pipelines of `data_pipeline.py` are asked for: batches of records in the order of a plan."""

from __future__ import annotations

import sys
import sysconfig
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from _torch import torch
from _workload import Params, Samples

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
from data_pipeline import Place, make_plan, make_vocabulary, read_record

SIZE = 1024


class Work(NamedTuple):
    files: list[str]
    batches: list[list[Place]]
    vocabulary: dict[bytes, int]


def work(params: Params) -> Work:
    files = [str(file) for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))]
    plan = make_plan(files, SIZE, seed=0)
    vocabulary = make_vocabulary(read_record(files[file], offset, SIZE) for file, offset in plan[:500])
    wanted = params["chunk"] * (params["warmup"] + params["count"]) * params["batch"]
    plan = (plan * (wanted // len(plan) + 1))[:wanted]
    return Work(files, [plan[at : at + params["batch"]] for at in range(0, wanted, params["batch"])], vocabulary)


def delivered(batches: Iterable[Any], start: float, params: Params) -> Samples:
    """Records a second of each chunk, and when the first batch came. Every batch is looked at."""
    iterator = iter(batches)
    seconds, rates, total = [], [], torch.zeros((), dtype=torch.long)
    for number in range(params["warmup"] + params["count"]):
        began = time.perf_counter()
        for tokens in islice(iterator, params["chunk"]):
            total += tokens[0, 0]
            seconds = seconds or [time.perf_counter() - start]
        if number >= params["warmup"]:
            rates.append(params["chunk"] * params["batch"] / (time.perf_counter() - began))
    return {"delivered": rates, "first": seconds}
