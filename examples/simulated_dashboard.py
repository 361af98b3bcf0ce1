"""The dashboard of a job that never ran, in which a rank fails after a minute: to try its pages, and for their tests.

    python examples/simulated_dashboard.py
    python examples/simulated_dashboard.py --ranks 4096 --failure-at 20

Hosts with eight ranks each; `trainers` step together, one of them slower than the others; at `failure_at` one fails in a
step, which the others then never end: they wait for it in a collective.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from monarch._mesh.inspection.diagnosis import Diagnosis, Finding
from monarch._mesh.output.kept import Line, OutputPage, OutputRequest
from monarch.dashboard.pages.icicle import RankStack
from monarch.dashboard.pages.live_data import LiveStacks
from monarch.telemetry.store import Store
from monarch.tools.dashboard_server import end_process, number, serve

Rows = dict[str, list[tuple[Any, ...]]]

PER_HOST = 8
STRAGGLER = 17
FAILED = 42
STEP = 1_000_000  # us between two steps
MOST_CALLS = 256  # trainers' messages a second: larger jobs step less often
MOST_GPUS = 64  # of which metrics are made
REASON = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 91, in step\n'
    "    loss.backward()\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU has 1.12 GiB free"
)
_MASK = 2**63 - 1


class SimulatedJob:
    """Times in microseconds since the epoch; the same seed gives the same rows."""

    def __init__(self, *, ranks: int = 64, start_us: int = 0, failure_at: float | None = 60.0, seed: int = 7) -> None:
        self.ranks = ranks
        self.start_us = start_us
        self.failure_us = None if failure_at is None else start_us + int(failure_at * 1e6)
        self.now_us = start_us
        self.failed = False
        self._random = random.Random(seed)
        self._number = seed
        self._number_of_step = 0
        self._hosts = -(-ranks // PER_HOST)
        self._period = STEP * max(1, ranks // MOST_CALLS)
        self._next_step = start_us + 2 * STEP
        self._next_evaluation = start_us + 5 * STEP
        self._next_sample = start_us
        self._counters: dict[str, int] = defaultdict(int)
        self._under_way: list[tuple[int, int]] = []  # (when, message) that end later
        self._meshes: dict[str, int] = {}
        self.actors: dict[str, list[int]] = {}
        self.statuses: dict[int, str] = {}

    def advance(self, to_us: int) -> Rows:
        """What is recorded between the last time and `to_us`."""
        rows: Rows = defaultdict(list)
        if not self._meshes:
            self._begin(rows)
        while True:
            due = [self._next_step, self._next_evaluation, self._next_sample]
            if self.failure_us is not None and not self.failed:
                due.append(self.failure_us)
            at = min(due)
            if at > to_us:
                break
            self.now_us = at
            if self.failure_us is not None and not self.failed and at == self.failure_us:
                self._fail(rows, at)
            elif at == self._next_step:
                self._step(rows, at)
                self._next_step += self._period
            elif at == self._next_evaluation:
                self._call(rows, at, "evaluator", "evaluate", lambda rank: 2_000_000)
                self._next_evaluation += 7 * STEP
            else:
                self._sample(rows, at)
                self._next_sample += STEP
        self.now_us = to_us
        for when, message in sorted(self._under_way):
            if when <= to_us:
                self._event(rows, when, message, "complete")
        self._under_way = [(when, message) for when, message in self._under_way if when > to_us]
        return dict(rows)

    # --- what happens

    def _begin(self, rows: Rows) -> None:
        at, hosts, ranks = self.start_us, self._hosts, self.ranks
        full = (["hosts", "gpus"], [hosts, PER_HOST]) if ranks == hosts * PER_HOST else (["gpus"], [ranks])
        every = _view(full[0], 0, full[1], [PER_HOST, 1] if len(full[1]) == 2 else [1])
        first = _view(["hosts"], 0, [hosts], [PER_HOST])
        self._mesh(rows, at, "local", "Proc", ["rank"], [1], None, None)
        self._mesh(rows, at, "nodes", "Host", ["hosts"], [hosts], None, None)
        self._mesh(rows, at, "workers", "Proc", *full, "nodes", None)
        self._mesh(rows, at, "client", "Python<Client>", ["rank"], [1], "local", None)
        self._mesh(rows, at, "trainers", "Python<Trainer>", *full, "workers", every)
        self._mesh(rows, at, "loaders", "Python<Loader>", ["hosts"], [hosts], "workers", first)
        self._mesh(rows, at, "evaluator", "Python<Evaluator>", ["rank"], [1], "workers", _view([], 0, [], []))
        self._mesh(rows, at, "log_forwarder", "Python<LogForwarder>", *full, "workers", every)
        self._population(rows, at, "client", "Client", 1)
        self._population(rows, at + 300_000, "trainers", "Trainer", ranks)
        self._population(rows, at + 350_000, "loaders", "Loader", hosts)
        self._population(rows, at + 400_000, "evaluator", "Evaluator", 1)
        self._population(rows, at + 200_000, "log_forwarder", "LogForwarder", ranks, system=True)

    def _mesh(
        self,
        rows: Rows,
        at: int,
        name: str,
        kind: str,
        labels: list[str],
        sizes: list[int],
        parent: str | None,
        view: str | None,
    ) -> None:
        number = self._meshes[name] = self._id()
        shape = json.dumps({"inner": {"labels": labels, "sizes": sizes}})
        above = None if parent is None else self._meshes[parent]
        rows["meshes"].append((number, at, kind, name, f"{name}-{number:x}", shape, above, view))

    def _population(self, rows: Rows, at: int, name: str, cls: str, ranks: int, system: bool = False) -> None:
        mesh = self._meshes[name]
        self.actors[name] = []
        for rank in range(ranks):
            actor = self._id()
            self.actors[name].append(actor)
            shown = None if system else f"<root>.<train.{cls} {name}{{'gpus': {rank}/{ranks}}}>"
            if name == "client":
                shown = "<root>"
            rows["actors"].append((actor, at, mesh, rank, self.reference(name, rank), shown))
            for delay, status in ((0, "Created"), (1_000, "Initializing"), (150_000 + 3_000 * (rank % 40), "Idle")):
                final = "Client" if name == "client" and status == "Idle" else status
                self._status(rows, at + delay, actor, final, None)

    def reference(self, name: str, rank: int) -> str:
        return f"{name}-{rank}<{self._meshes[name] & 0xFFFFFFFF:x}>.{self.process(name, rank)}"

    def process(self, name: str, rank: int) -> str:
        if name == "client":
            return "client@unix:/run/client"
        place = rank * PER_HOST if name == "loaders" else rank
        return f"workers-{place}<{self._meshes['workers'] & 0xFFFFFFFF:x}>@tcp://node{place // PER_HOST + 1}:26600"

    def _step(self, rows: Rows, at: int) -> None:
        if self.failed:
            return
        fails = self.failure_us is not None and at + self._period >= self.failure_us
        self._logs_metrics(rows, at)
        self._call(rows, at, "trainers", "step", lambda rank: None if fails else self._took(rank))
        for rank in range(0, self.ranks, max(1, self.ranks // MOST_CALLS)):
            host = rank // PER_HOST
            self._message(
                rows,
                at + 500 + rank * 20,
                self.actors["trainers"][rank],
                self.actors["loaders"][host],
                "next_batch",
                30_000 + self._random.randrange(15_000),
            )

    def _logs_metrics(self, rows: Rows, at: int) -> None:
        """What `monarch.metrics.log` would have recorded. The straggler has fewer tokens a second, and one loss is NaN."""
        number, self._number_of_step = self._number_of_step, self._number_of_step + 1
        self._log(rows, at, "INFO", 0, f"step {number} begins", 85)
        if self.ranks > STRAGGLER and number % 5 == 0:
            self._log(rows, at + 700_000, "WARNING", STRAGGLER, f"reading batch {number} took 480 ms", 57)
        for rank in range(self.ranks):
            loss = 2.2 * 0.96**number + 0.8 + 0.02 * self._random.random()
            values = {
                "loss": math.nan if number == 9 and rank == 5 else loss,
                "grad/norm": loss / 2 + 0.1 * self._random.random(),
                "tokens/s": (820 if rank == STRAGGLER else 1750) + 60 * self._random.random(),
            }
            rows["metrics"] += [
                (at, name, number, value, "trainers", rank, self.process("trainers", rank).partition("@")[0])
                for name, value in values.items()
            ]

    def _log(self, rows: Rows, at: int, level: str, rank: int, text: str, line: int) -> None:
        """A line of Python's log."""
        process = self.process("trainers", rank).partition("@")[0]
        fields = {"message": text, "actor_id": self.actors["trainers"][rank], "process_id": process}
        where = ("train", "/home/me/train.py", line)
        rows["events"].append(
            (f"event train.py:{line}", "train", level, json.dumps(fields), at, None, 1, "main", *where)
        )

    def _took(self, rank: int) -> int:
        return (900_000 if rank == STRAGGLER else 420_000) + self._random.randrange(60_000)

    def _call(self, rows: Rows, at: int, name: str, endpoint: str, took: Any) -> None:
        sender = self.actors["client"][0]
        ranks = len(self.actors[name])
        view = _view(["rank"], 0, [ranks], [1])
        rows["sent_messages"].append((self._id(), at, sender, self._meshes[name], view, view))
        for rank, actor in enumerate(self.actors[name]):
            self._message(rows, at + rank * 15, sender, actor, endpoint, took(rank))

    def _message(self, rows: Rows, at: int, sender: int, receiver: int, endpoint: str, took: int | None) -> None:
        """`took`: us in the endpoint; None: it does not end."""
        message = self._id()
        rows["messages"].append((message, at, sender, receiver, endpoint, None))
        self._event(rows, at, message, "queued")
        self._event(rows, at + 180, message, "active")
        if took is not None:
            self._under_way.append((at + 180 + took, message))
        elif self.ranks > FAILED and receiver == self.actors["trainers"][FAILED]:
            self._doomed = message

    def _fail(self, rows: Rows, at: int) -> None:
        self.failed = True
        rank = min(FAILED, self.ranks - 1)
        if self.ranks > FAILED and getattr(self, "_doomed", None) is not None:
            self._event(rows, at, self._doomed, "failed")
        self._log(rows, at - 1_000, "ERROR", rank, "no room for the gradients: 2.50 GiB are wanted", 91)
        self._status(rows, at, self.actors["trainers"][rank], "Failed", REASON)

    def _sample(self, rows: Rows, at: int) -> None:
        busy = 0.3 if self.failed else 1.0
        for host in range(min(self._hosts, MOST_GPUS // PER_HOST)):
            name = f"node{host + 1}"
            jitter = self._random.random()
            for counter, rate in (("rx", 6e8), ("tx", 5.5e8), ("read", 4e7), ("write", 3e6)):
                self._counters[name + counter] += int(rate * busy * (0.8 + 0.4 * self._random.random()))
            used = int(2**30 * (180 + 3 * host + 4 * jitter))
            rows["host_metrics"].append(
                (
                    at,
                    name,
                    round(busy * (38 + 9 * jitter) + host, 1),
                    96,
                    round(34 * busy + jitter, 2),
                    33.0,
                    30.0,
                    2**40,
                    2**40 - used,
                    used,
                    0,
                    *(self._counters[name + counter] for counter in ("rx", "tx", "read", "write")),
                    int(1.4e12),
                    int(2.1e11),
                )
            )
            for gpu in range(PER_HOST):
                rank = host * PER_HOST + gpu
                load = (3.0 if self.failed else 96.0 if rank != STRAGGLER else 71.0) * (0.96 + 0.04 * jitter)
                rows["gpu_metrics"].append(
                    (
                        at,
                        name,
                        gpu,
                        f"GPU-{host:04x}-{gpu:04x}",
                        "NVIDIA H100 80GB HBM3",
                        round(load, 1),
                        int(2**30 * (61 + jitter)),
                        80 * 2**30,
                        int(36 + 0.28 * load),
                        round(90 + 5.6 * load, 1),
                    )
                )

    def _status(self, rows: Rows, at: int, actor: int, status: str, reason: str | None) -> None:
        self.statuses[actor] = status.lower()
        rows["actor_status_events"].append((self._id(), at, actor, status, reason))

    def _event(self, rows: Rows, at: int, message: int, status: str) -> None:
        rows["message_status_events"].append((self._id(), at, message, status))

    def _id(self) -> int:
        """Ids are opaque and have 64 bits, as real ones."""
        self._number += 1
        return (self._number * 0x9E3779B97F4A7C15) & _MASK

    # --- what lives

    def payloads(self) -> list[dict[str, Any]]:
        """The tree as the admin API tells of it."""
        hosts: dict[str, list[str]] = defaultdict(list)
        members: dict[str, list[str]] = defaultdict(list)
        actors = []
        for name, ids in self.actors.items():
            for rank, actor in enumerate(ids):
                process, reference = self.process(name, rank), self.reference(name, rank)
                host = "host:" + process.partition("@")[2]
                if process not in members:
                    hosts[host].append(process)
                members[process].append(reference)
                status = self.statuses[actor]
                said = f"failed: {REASON.splitlines()[-1]}" if status == "failed" else status
                actors.append((reference, process, said, name == "log_forwarder"))
        payloads = [_payload("root", "Root", {"num_hosts": len(hosts)}, list(hosts), None)]
        for host, processes in hosts.items():
            properties = {"addr": host.removeprefix("host:"), "num_procs": len(processes)}
            payloads.append(_payload(host, "Host", properties, processes, "root"))
        failed = {process for _, process, said, _ in actors if said.startswith("failed")}
        for process, references in members.items():
            properties = {
                "proc_name": process.partition("@")[0],
                "num_actors": len(references),
                "system_children": [reference for reference in references if reference.startswith("log_forwarder")],
                "is_poisoned": False,
                "failed_actor_count": int(process in failed),
            }
            above = "host:" + process.partition("@")[2]
            payloads.append(_payload(process, "Proc", properties, references, above))
        for reference, process, said, system in actors:
            payloads.append(_payload(reference, "Actor", {"actor_status": said, "is_system": system}, [], process))
        return payloads

    def output(self, wanted: OutputRequest) -> list[OutputPage]:
        """What the trainers have printed: a line for each of the last steps."""
        chosen = range(self.ranks) if wanted.ranks is None else [rank for rank in wanted.ranks if rank < self.ranks]
        if wanted.mesh not in (None, "workers"):
            return []
        pages = []
        for rank in chosen:
            texts = [(1, f"step {step}: loss {2.2 * 0.96**step + 0.8:.3f}") for step in range(self._number_of_step)]
            texts += [(2, line) for line in REASON.splitlines()] if self.failed and rank == FAILED else []
            first = max(0, len(texts) - wanted.lines)
            lines = [
                Line(number + 1, self.start_us / 1e6 + 2.0 + number, stream, text)
                for number, (stream, text) in enumerate(texts)
                if number >= first
            ]
            pages.append(OutputPage(f"{rank}", "", "workers", rank, False, True, "", 0, len(texts), lines))
        return pages

    def findings(self) -> list[Finding]:
        """What is wrong when a rank has failed."""
        rank = min(FAILED, self.ranks - 1)
        others = f"0-{rank - 1}, {rank + 1}-{self.ranks - 1}" if 0 < rank < self.ranks - 1 else "all others"
        died = Finding(
            "failed",
            f"trainers {rank} has failed: {REASON.splitlines()[-1]}",
            REASON.splitlines(),
            "see its last lines, and begin with a smaller batch",
            "trainers",
            [rank],
        )
        waits = Finding(
            "collective",
            f"ranks {others} wait in all_reduce #43 of group dp (at train.py:88 in step()); rank {rank} has not entered it",
            [f"trainers {each}: torch/distributed/distributed_c10d.py:2810 in all_reduce" for each in range(3)],
            "they wait for the rank that has failed",
            "trainers",
            [rank],
        )
        return [died, waits]

    def stacks(self) -> Iterator[RankStack]:
        """Where the threads stand."""
        loop = [("Trainer.step", "train.py", 88)]
        waits = [*loop, ("all_reduce", "torch/distributed/distributed_c10d.py", 2810)]
        for rank in range(self.ranks):
            if self.failed and rank == FAILED:
                continue
            if rank == STRAGGLER:
                frames = [*loop, ("Loader.read", "data.py", 31), ("decode", "data.py", 57)]
            else:
                frames = waits if self.failed or rank % 9 else [*loop, ("forward", "model.py", 140 + rank % 3)]
            yield RankStack(f"trainers {rank}", "trainers", frames)
        for host in range(self._hosts):
            yield RankStack(f"loaders {host}", "loaders", [("wait", "threading.py", 355)], idle=True)
        yield RankStack("client", "client", [("<module>", "train.py", 140), ("get", "monarch/actor.py", 1)])


def _payload(
    identity: str, kind: str, properties: dict[str, Any], children: list[str], parent: str | None
) -> dict[str, Any]:
    return {"identity": identity, "properties": {kind: properties}, "children": children, "parent": parent, "as_of": ""}


def _view(labels: list[str], offset: int, sizes: list[int], strides: list[int]) -> str:
    return json.dumps({"labels": labels, "slice": {"offset": offset, "sizes": sizes, "strides": strides}})


def put(store: Store, rows: Rows) -> None:
    """Puts rows into a store, and what was logged into its curves."""
    for table, some in rows.items():
        store.insert(table, some)
    for at, name, step, value, mesh, rank, _ in rows.get("metrics", ()):
        store.curves.add(mesh, name, step, value, rank, at / 1e6)


class Simulation:
    """The simulated job, growing in a store as time goes by; `LiveData` for the dashboard."""

    def __init__(
        self,
        store: Store,
        *,
        ranks: int = 64,
        failure_at: float | None = 60.0,
        interval: float = 1.0,
        past: float = 0.0,
    ) -> None:
        start_us = int((time.time() - past) * 1e6)
        self._store = store
        self._interval = interval
        self._job = SimulatedJob(ranks=ranks, start_us=start_us, failure_at=failure_at)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="simulation", daemon=True)
        self.catch_up()

    def start(self) -> None:
        """It goes on by itself until `close`."""
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def catch_up(self) -> None:
        """Puts into the store what has happened until now."""
        with self._lock:
            put(self._store, self._job.advance(int(time.time() * 1e6)))

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            self.catch_up()

    # --- as LiveData

    def about(self) -> dict[str, Any]:
        return {
            "name": "simulated job",
            "pid": None,
            "started_us": self._job.start_us,
            "command": f"a simulated job of {self._job.ranks} ranks",
        }

    def payloads(self) -> list[dict[str, Any]]:
        with self._lock:
            return self._job.payloads()

    def output(self, wanted: OutputRequest) -> list[OutputPage]:
        with self._lock:
            return self._job.output(wanted)

    def diagnosis(self) -> Diagnosis:
        """What the doctor would find. The straggler is told of by its times."""
        with self._lock:
            job = self._job
            return Diagnosis(job.findings() if job.failed else [], [], job.ranks - job.failed)

    def stacks(self) -> LiveStacks:
        with self._lock:
            return LiveStacks(list(self._job.stacks()), {})

    def stacks_of(self, reference: str) -> LiveStacks:
        name, _, rank = reference.partition("<")[0].rpartition("-")
        mine = [stack for stack in self.stacks().stacks if stack.where == f"{name} {rank}"]
        return LiveStacks(mine, {} if mine else {reference: "its process does not answer"})

    def capture(self, reference: str) -> dict[str, Any]:
        raise RuntimeError("a simulated process has no stacks of its own")

    def profile(self, seconds: float, path: str) -> None:
        raise RuntimeError("a simulated job cannot be profiled")


MOST_RANKS = 16_384


def main() -> int:
    parser = argparse.ArgumentParser(description="Serves the dashboard of a simulated job, which grows while you look.")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (127.0.0.1); elsewhere a token is needed")
    parser.add_argument("--port", type=number(int, 0, 65535), default=5000, help="(5000; 0, or taken: any free one)")
    parser.add_argument("--ranks", type=number(int, 1, MOST_RANKS), default=64, help="(64)")
    parser.add_argument("--interval", type=number(float, 0.1, 60), default=1.0, metavar="S", help="of its growth (1)")
    parser.add_argument(
        "--failure-at", type=number(float, 1, 1e6), default=60.0, metavar="S", help="when a rank fails (60)"
    )
    parser.add_argument(
        "--past", type=number(float, 0, 3600), default=0.0, metavar="S", help="how long it has been running already (0)"
    )
    options = parser.parse_args()
    try:
        with (
            contextlib.closing(Store()) as store,
            contextlib.closing(
                Simulation(
                    store,
                    ranks=options.ranks,
                    failure_at=options.failure_at,
                    interval=options.interval,
                    past=options.past,
                )
            ) as simulation,
        ):
            simulation.start()
            return serve(store, simulation, options.host, options.port)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    end_process(main())
