"""What looking costs: the sampler in a busy process, a recording for each call, and the export of a large trace.

python benchmarks/trace.py [--spans 1000000] [--calls 5000]
"""

import argparse
import io
import json
import tempfile
import threading
import time
from collections.abc import Iterator

import msgspec

from monarch._mesh.inspection import sampler
from monarch._runtime.context import here
from monarch.actor import Actor, endpoint, this_host
from monarch.replay import recording
from monarch.trace import perfetto
from monarch.trace.spans import CALLER, SpanRow, draw
from monarch.trace.timeline import chrome


class Worker(Actor):
    @endpoint
    def nothing(self, value: int) -> int:
        return value

    @endpoint
    def busy(self, seconds: float, rate: float) -> tuple[int, float]:
        """Loops done in so many seconds while a sampler looks, and what it says it took."""
        proc, overheads = here(), [0.0]

        def look() -> None:
            argument = msgspec.msgpack.encode({"duration_s": seconds, "rate_hz": rate})
            overheads[0] = sampler.decode(sampler.answer(proc, argument)).overhead

        looker = threading.Thread(target=look, name="monarch-answer")
        if rate:
            looker.start()
        loops, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            sum(range(1000))
            loops += 1
        if rate:
            looker.join()
        return loops, overheads[0]


def sampling(worker: Worker) -> None:
    base = max(worker.busy.call_one(1.0, 0.0).get()[0] for _ in range(3))
    for rate in (100.0, 1000.0):
        loops, overhead = max(worker.busy.call_one(1.0, rate).get() for _ in range(3))
        print(f"sampler at {rate:g} Hz: {1 - loops / base:.1%} fewer loops, it says {overhead:.2%} of a core")


def per_call(worker: Worker, calls: int) -> float:
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for number in range(calls):
            worker.nothing.call_one(number).get()
        best = min(best, (time.perf_counter() - began) / calls)
    return best * 1e6


def recordings(calls: int) -> None:
    procs = this_host().spawn_procs(per_host={"gpus": 1})
    plain = procs.spawn("plain", Worker)
    with tempfile.TemporaryDirectory() as folder, recording("recorded", folder=f"{folder}/recordings"):
        recorded = this_host().spawn_procs(per_host={"gpus": 1}).spawn("recorded", Worker)
        costs = [(per_call(plain, calls), per_call(recorded, calls)) for _ in range(2)]
        without, with_it = min(cost[0] for cost in costs), min(cost[1] for cost in costs)
        print(f"a call: {without:.1f} us, recorded {with_it:.1f} us")
        recorded.stop().get()


def rows(count: int) -> Iterator[SpanRow]:
    for number in range(count // 2):
        at = 1_000_000 + number * 10
        call = {"correlation_id": number + 1, "actor_id": 1, "mesh": "m", "method": "step", "call_name": "call"}
        yield SpanRow("client", number, "call", CALLER, json.dumps(call), at, at + 9)
        ran = {"correlation_id": number + 1, "actor_id": 2 + number % 64, "name": "step"}
        yield SpanRow(f"p-{number % 64}", number, "python_user_span", "", json.dumps(ran), at + 1, at + 8)


def export(count: int) -> None:
    began = time.process_time()
    timeline, drawn = draw(rows(count), 0, 1 << 60)
    drew = time.process_time()
    size = perfetto.write(timeline, io.BytesIO())
    wrote = time.process_time()
    text = chrome(timeline)
    print(
        f"{drawn.spans} spans: rows to a time line {drew - began:.1f} s, Perfetto {wrote - drew:.1f} s of CPU and "
        f"{size / 2**20:.0f} MiB, Chrome JSON {time.process_time() - wrote:.1f} s and {len(text) / 2**20:.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--calls", type=int, default=5000)
    options = parser.parse_args()
    sampling(this_host().spawn_procs(per_host={"gpus": 1}).spawn("worker", Worker))
    recordings(options.calls)
    export(options.spans)


if __name__ == "__main__":
    main()
