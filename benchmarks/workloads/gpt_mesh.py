"""The same training steps from one script: data parallel with distributed tensors."""

from __future__ import annotations

import time
from typing import Any

from _torch import torch
from _workload import Params, Samples, main
from gpt import GPT, optimizer

import monarch
from monarch.actor import this_host
from monarch.builtins.random import set_manual_seed_remote


def trained(params: Params, traced: bool) -> Samples:
    """Seconds a step, until its loss is here."""
    samples: Samples = {"step": []}
    procs = this_host().spawn_procs({"dp": params["procs"]})
    with procs.activate() as mesh:
        set_manual_seed_remote(0)
        model = GPT(*(params[k] for k in ("vocabulary", "length", "layers", "width", "heads")))
        step = optimizer(model)
        set_manual_seed_remote(0, mesh.process_idx())

        def whole(words: Any, wanted: Any) -> Any:
            step.zero_grad()
            loss = model(words, wanted)
            loss.backward()
            monarch.reduce_([p.grad for p in model.parameters()], "dp", "avg")
            step.step()
            return loss.detach()

        run = monarch.function(whole) if traced else whole
        shape = (params["batch"], params["length"])
        for round_ in range(params["warmup"] + params["count"]):
            words, wanted = (torch.randint(0, params["vocabulary"], shape) for _ in range(2))
            start = time.perf_counter()
            loss = run(words, wanted)
            monarch.inspect(loss)
            if round_ >= params["warmup"]:
                samples["step"].append(time.perf_counter() - start)
        mesh.exit()
    return samples


def step(params: Params) -> Samples:
    """Traced once, then one small message a step."""
    return trained(params, True)


def op_by_op(params: Params) -> Samples:
    """Every operation is issued anew at each step."""
    return trained(params, False)


if __name__ == "__main__":
    main({"step": step, "op_by_op": op_by_op})
