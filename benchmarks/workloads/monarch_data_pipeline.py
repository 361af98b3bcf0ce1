"""Records read by readers and tokenized by tokenizers: the stages of examples/data_pipeline.py."""

from __future__ import annotations

import time
from typing import Any

from _records import SIZE, delivered, work
from _workload import Params, Samples, main
from data_pipeline import Reader, Tokenizer

from monarch.actor import this_host


def records(params: Params) -> Samples:
    todo = work(params)
    start = time.perf_counter()
    reading = this_host().spawn_procs({"readers": params["readers"]})
    tokenizing = this_host().spawn_procs({"tokenizers": params["workers"]})
    readers = reading.spawn("readers", Reader, todo.files, SIZE)
    tokenizers: Any = tokenizing.spawn("tokenizers", Tokenizer, readers, todo.vocabulary)
    with tokenizers.tokenize.map(todo.batches, in_flight=params["in_flight"]) as results:
        samples = delivered((batch.tokens for batch in results), start, params)
    tokenizing.stop().get()
    reading.stop().get()
    return samples


if __name__ == "__main__":
    main({"records": records})
