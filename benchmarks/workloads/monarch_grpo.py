"""Asynchronous GRPO with our actors: those of examples/grpo/actors.py, as they are."""

from __future__ import annotations

import asyncio

from _grpo import examples, figures, settings
from _workload import Params, Samples, main

from monarch.actor import shutdown_context, this_host


def train(params: Params) -> Samples:
    examples(params)
    return asyncio.run(run(params))


async def run(params: Params) -> Samples:
    from actors import Buffer, Generator, Learner, Scorer
    from actors import train as train_actors
    from progress import Progress

    own = settings(params)
    learner = this_host().spawn_procs({"gpus": 1}).spawn("learner", Learner, own)
    helpers = this_host().spawn_procs()
    scorer = helpers.spawn("scorer", Scorer, own.task)
    buffer = helpers.spawn("buffer", Buffer, params["capacity"], params["max_age"])
    generators = this_host().spawn_procs({"gpus": params["generators"]}).spawn("generators", Generator, own)
    count = params["warmup"] + params["count"]
    progress = Progress(count)
    steps, refused = await train_actors(count, 0, learner, generators, scorer, buffer, progress)
    ends, _ = progress.values["mean reward"]  # when the script heard of each
    return figures(params, ends, [step.age for step in steps], [step.waited for step in steps], refused)


if __name__ == "__main__":
    try:
        main({"train": train})
    finally:
        shutdown_context().get()
