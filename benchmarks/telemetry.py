"""What telemetry costs and holds: recording a call, rows a second into the tables, a count over a million rows, memory.

python benchmarks/telemetry.py [--quick] [--base ../before]    # --base: another checkout, timed in turn with ours
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

ROUNDS = 9  # of calls, in turn
CALLS = 1500  # of a round
AIM_ROWS = 100_000  # a second
AIM_COUNT = 0.050  # seconds for a count over a million rows
AIM_CALL = 0.03  # of a call

CALL = """
import sys, time
from monarch.actor import Actor, endpoint, this_host

class Echo(Actor):
    @endpoint
    def echo(self, value):
        return value

def main(recorded, count):
    if recorded:
        import monarch.telemetry
        monarch.telemetry.start(snapshot_interval_secs=0, host_metrics_interval_secs=0, gpu_metrics_interval_secs=0)
    echo = this_host().spawn_procs({"gpus": 1}).spawn("echo", Echo).echo
    for _ in range(300):
        echo.call_one(1).get()
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(count):
            echo.call_one(1).get()
        print((time.perf_counter() - began) / count, flush=True)

if __name__ == "__main__":
    main(sys.argv[1] == "on", int(sys.argv[2]))
"""


class Program:
    """One that calls when it is asked to."""

    def __init__(self, checkout: Path, recorded: bool, calls: int) -> None:
        script = Path(os.environ.get("TMPDIR", "/tmp")) / f"monarch-bench-telemetry-{os.getpid()}.py"
        script.write_text(CALL)
        self.script = script
        self.process = subprocess.Popen(
            [sys.executable, str(script), "on" if recorded else "off", str(calls)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout)},
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def round(self) -> float:
        """Seconds a call."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.script.unlink(missing_ok=True)


def calls(base: Path | None, rounds: int, count: int) -> None:
    """Round trips with telemetry off and on, and of another checkout, one after the other in each round."""
    programs = {"off": Program(ROOT, False, count), "on": Program(ROOT, True, count)}
    if base is not None:
        programs["before"] = Program(base, False, count)
    try:
        times: dict[str, list[float]] = {name: [] for name in programs}
        for _ in range(rounds):
            for name, program in programs.items():
                times[name].append(program.round())
    finally:
        for program in programs.values():
            program.close()
    for name, found in times.items():
        ratios = [one / other for one, other in zip(found, times["off"], strict=True)]
        print(
            f"call, {name:6}: {min(found) * 1e6:7.1f} us at best, {statistics.median(ratios):.3f} of off in the same round"
        )


def recording(count: int) -> None:
    """What recording adds in each of the two processes, without the rest of the call."""
    from types import SimpleNamespace

    from monarch._runtime import recorder as recorders
    from monarch._runtime.instance import Delivery
    from monarch._runtime.recorder import Recorder
    from monarch._wire.message import Call

    recorder = Recorder(limit=10**9)
    call = Call("key", "client.0", 1, "echo", 5, "", 0, b"", 0)
    delivery = Delivery(call, b"", (), "unix:x/client")
    behaviour = SimpleNamespace(_methods={"echo": SimpleNamespace(spans=True, concurrent=False)})
    receiver = SimpleNamespace(unique="key.0", system=False, behaviour=behaviour)
    sender = SimpleNamespace(unique="client.0", system=False)
    entry = SimpleNamespace(number=5, began=1.0, told=0, has_failed=lambda: False)
    view = ("{}", "{}")

    def received() -> None:
        delivery.arrived = time.monotonic()
        recorder.handled(receiver, delivery)

    def sent() -> None:
        time.monotonic()
        recorder.answered(entry, recorder.sent(sender, "key", "echo", object, "echo", 1, view))  # type: ignore[arg-type]

    for name, work in (("receiver", received), ("caller", sent)):
        print(f"recording a call, {name:8}: {best(work, count) * 1e9:5.0f} ns")
        recorder.events.clear()
    print(
        f"the test while it is off  : {best(lambda: recorders.active is not None, count) * 1e9:5.0f} ns (with the lambda)"
    )


def best(work: Callable[[], Any], count: int) -> float:
    """Seconds of one, in the best of seven rounds."""
    found = []
    gc.disable()
    for _ in range(7):
        began = time.perf_counter()
        for _ in range(count):
            work()
        found.append((time.perf_counter() - began) / count)
    gc.enable()
    return min(found)


def store(events: int) -> None:
    """Batches of eight processes, from bytes to rows; then queries over them."""
    import msgspec

    from monarch._mesh.inspection.outgoing_batches import BATCH, BatchHead
    from monarch._runtime import recorder
    from monarch._wire.message import Call
    from monarch.telemetry import batches
    from monarch.telemetry.batches import EventColumns
    from monarch.telemetry.ingest import Ingest
    from monarch.telemetry.store import Store

    encode = msgspec.msgpack.Encoder().encode
    view = ('{"labels":["gpus"]}', '{"labels":["gpus"]}')

    def batch(number: int) -> bytes:
        rank, now, rows = number % 8, time.monotonic(), []
        for seq in range(number * BATCH, number * BATCH + BATCH // 2):
            call = Call("key", "client.0", seq, "echo", seq + 1, "", rank, b"", 0)
            rows.append((recorder.HANDLED, f"key.{rank}", call, "unix:x/client", now, now, now, False, True, 0))
            sent = ("client.0", "key", "echo", "echo", 0, seq, view, None, 0)
            rows.append((recorder.CALLED, sent, seq + 1, now, now, False, 0))
        head = BatchHead(
            f"unix:x/key.{rank}", f"echo-{rank}", "node", 1, now, time.time(), 0.0, 0.0, number // 8 + 1, 0
        )
        return encode((head, rows))

    kept = Store()
    ingest = Ingest(kept)
    before = memory(kept.keeper.process.pid)
    made, seconds, rows = 0, 0.0, 0
    try:
        while made < events:
            given = [batch(made // BATCH + number) for number in range(50)]
            began = time.perf_counter()
            gathered = EventColumns()
            for one in given:
                gathered.add(*batches.decode(one))
            ingest.insert(gathered)
            seconds += time.perf_counter() - began
            made += gathered.count
        tables = ("messages", "message_status_events", "spans", "span_events", "sent_messages")
        ingest.flush()
        rows = sum(kept.query(f"SELECT count(*) FROM {table}").rows[0][0] for table in tables)
        print(f"ingest: {rows / seconds:,.0f} rows/s ({made / seconds:,.0f} events/s); aim {AIM_ROWS:,} rows/s")
        print(f"memory: {(memory(kept.keeper.process.pid) - before) / rows:.0f} bytes a row before, ", end="")
        kept.compact()
        ((used,),) = kept.query("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").rows
        print(f"{used / rows:.0f} after it was compacted; {rows:,} rows")
        sql = "SELECT status, count(*) FROM message_status_events GROUP BY status"
        (large,) = kept.query("SELECT count(*) FROM message_status_events").rows[0]
        own = [best(lambda: kept.query("SELECT 1", typed=False), 1) for _ in range(3)]
        typed = best(lambda: kept.query("SELECT 1"), 3)
        print(f"least of a query: {min(own) * 1e3:.1f} ms of a page, {typed * 1e3:.1f} ms of somebody")
        began = time.perf_counter()
        try:
            kept.query("SELECT levenshtein(repeat('a', 300000), repeat('b', 300000))", timeout=0.5)
        except TimeoutError:
            pass
        ended = time.perf_counter()
        kept.query("SELECT 1")
        print(
            f"one that does not stop: killed after {ended - began:.2f} s of 0.5, the next answered in "
            f"{(time.perf_counter() - ended) * 1e3:.0f} ms"
        )
        for text in (sql, "SELECT count(*) FROM message_status_events WHERE status = 'complete'"):
            took = best(lambda text=text: kept.query(text), 3)  # type: ignore[misc]
            print(f"over {large:,} rows: {took * 1e3:6.1f} ms  {text}; aim {AIM_COUNT * 1e3:.0f} ms a million")
    finally:
        ingest.close()
        kept.close()


def memory(process: int | str = "self") -> int:
    """Bytes of a process, now at most."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, fewer rows")
    parser.add_argument("--base", type=Path, help="another checkout")
    options = parser.parse_args()
    recording(20_000 if options.quick else 100_000)
    store(50_000 if options.quick else 700_000)
    calls(options.base, 3 if options.quick else ROUNDS, CALLS // 3 if options.quick else CALLS)


if __name__ == "__main__":
    main()
