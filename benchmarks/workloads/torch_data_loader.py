"""Records read and tokenized by the workers of torch's DataLoader."""

from __future__ import annotations

import time
from typing import Any

from _records import SIZE, Work, delivered, work
from _torch import torch
from _workload import Params, Samples, main
from data_pipeline import padded, read_record, tokens_of
from torch.utils.data import DataLoader, Dataset


class Batches(Dataset[Any]):
    def __init__(self, work: Work) -> None:
        self.work = work

    def __len__(self) -> int:
        return len(self.work.batches)

    def __getitem__(self, number: int) -> torch.Tensor:
        texts = [read_record(self.work.files[place.file], place.offset, SIZE) for place in self.work.batches[number]]
        return padded([tokens_of(text, self.work.vocabulary) for text in texts])


def records(params: Params) -> Samples:
    dataset = Batches(work(params))
    start = time.perf_counter()
    options = {"num_workers": params["workers"], "prefetch_factor": params["in_flight"]}
    return delivered(DataLoader(dataset, batch_size=None, **options), start, params)


if __name__ == "__main__":
    main({"records": records})
