"""Asynchronous GRPO by hand: processes and queues of torch.multiprocessing, weights in a module in shared memory.

Tensors travel as numpy arrays: torch's own way through a queue, a file of shared memory for each, costs small ones more.
"""

from __future__ import annotations

import time
from typing import Any

from _grpo import ARRAYS, Maker, Trainer, examples, settings
from _torch import torch
from _workload import Params, Samples, main
from torch import multiprocessing


def train(params: Params) -> Samples:
    examples(params)
    context = multiprocessing.get_context("spawn")
    shared = settings(params).policy().share_memory()
    version, lock = context.Value("q", -1, lock=False), context.Lock()
    # One more than the others' buffer: their learners have asked for the next batch, which here still is in the queue.
    unscored, samples, result = context.Queue(), context.Queue(maxsize=params["capacity"] + 1), context.Queue()
    scores = [context.Queue() for _ in range(params["generators"])]
    processes = [context.Process(target=score, args=(params, unscored, scores), daemon=True)]
    for rank in range(params["generators"]):
        args = (params, rank, shared, version, lock, unscored, scores[rank], samples)
        processes.append(context.Process(target=generate, args=args, daemon=True))
    processes.append(context.Process(target=learn, args=(params, shared, version, lock, samples, result), daemon=True))
    for process in processes:
        process.start()
    try:
        figures: Samples = result.get(timeout=params["timeout"])
        return figures
    finally:
        for process in processes:
            process.kill()
            process.join()


def score(params: Params, unscored: Any, scores: Any) -> None:
    torch.set_num_threads(1)
    task = settings(params).task
    while True:
        rank, prompts, completions = unscored.get()
        scores[rank].put(task.rewards(torch.from_numpy(prompts), torch.from_numpy(completions)).numpy())


def generate(
    params: Params, rank: int, shared: Any, version: Any, lock: Any, unscored: Any, scores: Any, samples: Any
) -> None:
    maker = Maker(params, rank)
    while True:
        while version.value < 0:  # the learner has not begun
            time.sleep(0.01)
        if version.value != maker.version:
            with lock:
                maker.policy.load_state_dict(shared.state_dict())
                maker.version = version.value
        prompts, completions, logprobs = (tensor.numpy() for tensor in maker.draw())
        unscored.put((rank, prompts, completions))
        samples.put((maker.version, prompts, completions, logprobs, scores.get()))


def learn(params: Params, shared: Any, version: Any, lock: Any, samples: Any, result: Any) -> None:
    from grpo import Samples as Batch

    trainer = Trainer(params)

    def publish() -> None:
        with lock:
            shared.load_state_dict(trainer.policy.state_dict())
            version.value = trainer.version

    publish()
    for _ in range(trainer.steps):
        start = time.perf_counter()
        while True:
            made_with, *arrays = samples.get()
            if trainer.fresh(made_with):
                break
        batch = Batch(made_with, **dict(zip(ARRAYS, map(torch.from_numpy, arrays), strict=True)))
        trainer.learn(batch, time.perf_counter() - start)
        publish()
        trainer.done()
    result.put(trainer.figures())


if __name__ == "__main__":
    main({"train": train})
