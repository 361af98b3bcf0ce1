"""Graphs of ours, and the same by ordinary calls."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy
from _graphs import DEPTH, measured
from _workload import Params, Samples, main
from monarch_actors import Echo
from two_hosts import other_host

from monarch import graph
from monarch.actor import this_host
from monarch.graph import InputNode
from monarch.tools.certs import make_certificates


def run(params: Params) -> Samples:
    procs = this_host().spawn_procs({"gpus": 4})
    echo = procs.spawn("echo", Echo)
    found = both(params, [echo.slice(gpus=rank) for rank in range(4)])
    procs.stop().get()
    return found


def hosts(params: Params) -> Samples:
    """Runs the same with two of the four on each of two hosts, workers on this machine; the client is on neither."""
    return over(params, other_host)


def tls(params: Params) -> Samples:
    """Runs the same over two hosts, with TLS between all of them."""
    with tempfile.TemporaryDirectory() as folder:
        made = make_certificates(f"{folder}/certs")
        trust = {"ca": str(made.ca), "certificate": str(made.certificate), "private_key": str(made.private_key)}
        return over(params, lambda: other_host("tls", trust))


def over(params: Params, host: Callable[[], AbstractContextManager[Any]]) -> Samples:
    with host() as one, host() as other:
        echoes = [each.spawn_procs({"gpus": 2}).spawn("echo", Echo) for each in (one, other)]
        return both(params, [echo.slice(gpus=rank) for echo in echoes for rank in range(2)])


def both(params: Params, echoes: list[Any]) -> Samples:
    """Calls, and then graphs."""
    value = numpy.ones(params["large"], dtype=numpy.uint8)

    def in_turn(given: Any) -> Any:
        for one in echoes:
            given = one.echo.call_one(given).get()
        return given

    def call(given: Any) -> Any:
        return echoes[0].echo.call_one(given).get()

    found = measured(params, " by calls", call, in_turn, lambda n: echoes[0].echo.call_one(n).get, in_turn, value)
    with InputNode() as x:
        first = last = echoes[0].echo.bind(x)
        for one in echoes[1:]:
            last = one.echo.bind(last)
    with (
        graph.compile(first, depth=DEPTH) as single,
        graph.compile(last, depth=DEPTH) as chain,
        graph.compile(last, depth=2, buffer=params["large"] + 4096) as large,
    ):
        found |= measured(
            params,
            "",
            lambda given: single.execute(given).get(),
            lambda given: chain.execute(given).get(),
            lambda given: single.execute(given).get,
            lambda given: large.execute(given).get(),
            value,
        )
    return found


if __name__ == "__main__":
    main({"graph": run, "hosts": hosts, "tls": tls})
