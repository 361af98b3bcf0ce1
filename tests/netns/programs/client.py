"""client.py: a client of hosts, told by lines of JSON on stdin what to do; each is answered with a line of JSON.

    [name, argument...]  ->  {"ok": value} or {"error": "TypeName: text"}

The names are the methods of `Client` below. What it is said to start goes on while the next lines are read.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import sys
import threading
from collections import deque
from typing import Any

import monarch.actor
import monarch.graph
from monarch.actor import Actor, ActorMesh, HostMesh, attach_to_workers, current_rank, endpoint
from monarch.graph import InputNode

SECONDS = 60.0


class Resident(Actor):
    """Lives on some host, and writes down what it hears."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @endpoint
    def where(self) -> tuple[int, int, int]:
        """Its network (the number of the namespace), process and host agent."""
        return os.stat("/proc/self/ns/net").st_ino, os.getpid(), os.getppid()

    @endpoint
    async def ask_neighbour(self, others: ActorMesh) -> tuple[dict[str, int], int]:
        """(the point asked, its network): of the same process on the next host."""
        point = current_rank()
        there = {label: point[label] for label in point.extent.labels}
        there["hosts"] = (there["hosts"] + 1) % others.sizes["hosts"]
        return there, (await others.slice(**there).where.call_one())[0]

    @endpoint
    async def ask(self, other: ActorMesh) -> tuple[int, int, int]:
        return await other.where.call_one()

    @endpoint
    def call(self, number: int) -> int:
        self.log.append(f"call {number}")
        return number

    @endpoint
    def cast(self, number: int) -> None:
        self.log.append(f"cast {number}")

    @endpoint
    async def haunt(self, others: ActorMesh) -> None:
        """Tells them -1, again and again, for as long as it lives."""
        while True:
            others.cast.broadcast(-1)
            await asyncio.sleep(0.002)

    @endpoint
    def heard_of_ghosts(self) -> int:
        return self.log.count("cast -1")

    @endpoint
    def heard_count(self) -> int:
        return len(self.log)

    @endpoint
    def heard(self) -> list[str]:
        return self.log


class Load:
    """Calls to all, with many unanswered at a time, and broadcasts between them, until it is told to end."""

    WINDOW = 32

    def __init__(self, residents: Any) -> None:
        self._residents = residents
        self._ending = threading.Event()
        self.changed = threading.Condition()
        self._futures: queue.Queue[Any] = queue.Queue(self.WINDOW)
        self.sent = self.answered = 0
        self.wrong: list[Any] = []
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._send, self._take)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        while not self._ending.is_set():
            number = self.sent
            try:
                self._residents.cast.broadcast(number)
                self._futures.put((number, self._residents.call.call(number)))
            except Exception as error:
                self._failed(error)
                break
            self.sent += 1
        self._futures.put(None)

    def _take(self) -> None:
        while (taken := self._futures.get()) is not None:
            number, future = taken
            try:
                answers = future.get(SECONDS)
            except Exception as error:
                self._failed(error)
                continue
            with self.changed:
                self.answered += 1
                if set(answers.values()) != {number}:
                    self.wrong.append([number, list(answers.values())])
                self.changed.notify_all()

    def _failed(self, error: Exception) -> None:
        with self.changed:
            self.failures.append(f"{type(error).__name__}: {error}")
            self._ending.set()
            self.changed.notify_all()

    def more(self, count: int) -> int:
        """Waits for `count` more answers, or a failure."""
        with self.changed:
            wanted = self.answered + count
            assert self.changed.wait_for(lambda: self.answered >= wanted or self.failures, SECONDS), (
                "no more answers come"
            )
            return self.answered

    def end(self) -> dict[str, Any]:
        self._ending.set()
        for thread in self._threads:
            thread.join(SECONDS)
            assert not thread.is_alive(), "the load does not end"
        return {"sent": self.sent, "answered": self.answered, "wrong": self.wrong, "failures": self.failures}


class Casts:
    """Broadcasts, one after the other, not many of them ahead of an answer, until they are to end."""

    AHEAD = 100

    def __init__(self, residents: Any, survivors: Any) -> None:
        self._residents = residents
        self._survivors = survivors
        self._ending = threading.Event()
        self._changed = threading.Condition()
        self.sent = 0
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        while not self._ending.is_set():
            for _ in range(self.AHEAD):
                self._residents.cast.broadcast(self.sent)
                self.sent += 1
            self._survivors.heard_count.call().get(SECONDS)
            with self._changed:
                self._changed.notify_all()

    def more(self, count: int) -> None:
        wanted = self.sent + count
        with self._changed:
            assert self._changed.wait_for(lambda: self.sent >= wanted, SECONDS), f"stuck at {self.sent} broadcasts"

    def end(self) -> int:
        self._ending.set()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), "a broadcast hangs"
        return self.sent


class GraphLoad:
    """Executions of a compiled graph, eight at a time, until one fails."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._changed = threading.Condition()
        self.done = 0
        self.wrong: list[Any] = []
        self.failure = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number, futures = 0, deque[Any]()
        try:
            while True:
                while len(futures) < 8:
                    futures.append(self._compiled.execute(number + len(futures)))
                if (result := futures.popleft().get(SECONDS)) != number:
                    self.wrong.append([number, result])
                number += 1
                with self._changed:
                    self.done = number
                    self._changed.notify_all()
        except Exception as error:
            with self._changed:
                self.failure = f"{type(error).__name__}: {error}"
                self._changed.notify_all()

    def more(self, count: int) -> int:
        """Waits for so many more, or a failure."""
        with self._changed:
            wanted = self.done + count
            assert self._changed.wait_for(lambda: self.done >= wanted or self.failure, SECONDS), "no more results come"
            return self.done

    def end_when_it_fails(self) -> dict[str, Any]:
        with self._changed:
            assert self._changed.wait_for(lambda: self.failure, SECONDS), "it does not fail"
        self._thread.join(SECONDS)
        self._compiled.close()
        return {"done": self.done, "wrong": self.wrong, "failure": self.failure}


class Client:
    """`hosts`, `residents` and `load` are those of the last attach, spawn and begin."""

    def __init__(self) -> None:
        self.hosts: HostMesh
        self.procs: Any
        self.residents: Any
        self.load: Load
        self.casts: Casts
        self.graph: GraphLoad
        self.faults: queue.SimpleQueue[str] = queue.SimpleQueue()

    def go_through(self, worker: str) -> None:
        monarch.actor.attach(worker)

    def listen(self, transport: str) -> None:
        monarch.actor.enable_transport(transport)

    def attach(self, *workers: str, **options: Any) -> dict[str, int]:
        """A mesh of the hosts, complete."""
        self.hosts = attach_to_workers(workers=workers, **options)
        self.hosts.initialized.get(SECONDS)
        return dict(self.hosts.sizes)

    def spawn(self, count: int) -> list[Any]:
        """Processes on each host and an actor in each; where they are."""
        self.procs = self.hosts.spawn_procs({"gpus": count})
        self.residents = self.procs.spawn("residents", Resident)
        return self.where()

    def where(self) -> list[Any]:
        return list(self.residents.where.call().get(SECONDS).values())

    def pick(self, start: int, stop: int) -> list[Any]:
        """From now on the residents are those of these hosts alone."""
        self.residents = self.residents.slice(hosts=slice(start, stop))
        return self.where()

    def haunt(self) -> None:
        """Actors on the first host do not cease to tell the residents of the second."""
        ghosts = self.procs.slice(hosts=0).spawn("ghosts", Resident)
        ghosts.haunt.broadcast(self.residents.slice(hosts=1))

    def heard_of_ghosts(self) -> list[int]:
        """Returns what the residents of the second host have heard so far."""
        return list(self.residents.slice(hosts=1).heard_of_ghosts.call().get(SECONDS).values())

    def replace(self, *workers: str) -> list[int]:
        """By these, what has died."""
        return self.hosts.replace(failed=True, workers=workers).get(SECONDS)

    def restart(self) -> list[Any]:
        """Returns what is gone; where all are then."""
        self.procs.restart(failed=True).get(SECONDS)
        self.residents.restart(failed=True).get(SECONDS)
        return self.where()

    def ask_neighbours(self) -> list[Any]:
        """Actors beside the residents ask residents of the next host."""
        asking = self.procs.spawn("asking", Resident)
        return list(asking.ask_neighbour.call(self.residents).get(SECONDS).values())

    def call_home(self) -> list[int]:
        """Residents ask an actor in this process."""
        mine = monarch.actor.this_proc().spawn("mine", Resident)
        return [net for net, _, _ in self.residents.ask.call(mine).get(SECONDS).values()]

    def ask_each_other(self) -> None:
        self.residents.ask_neighbour.call(self.residents).get(SECONDS)

    def cast(self, first: int, stop: int) -> None:
        for number in range(first, stop):
            self.residents.cast.broadcast(number)

    def stream(self, number: int) -> list[int]:
        return [future.get(SECONDS) for future in self.residents.call.stream(number)]

    def heard(self) -> list[list[str]]:
        """Returns what each resident has heard, in that order."""
        return list(self.residents.heard.call().get(SECONDS).values())

    def begin(self) -> None:
        self.load = Load(self.residents)

    def more(self, count: int) -> int:
        return self.load.more(count)

    def end(self) -> dict[str, Any]:
        return self.load.end()

    def begin_casts(self, spared: int) -> None:
        """Broadcasts that go on, to all; hosts from `spared` on are those that will not die."""
        self.casts = Casts(self.residents, self.residents.slice(hosts=slice(spared, None)))

    def more_casts(self, count: int) -> None:
        """Waits for so many more."""
        self.casts.more(count)

    def execute(self, *hosts: int) -> None:
        """Begins to execute a graph, a chain over these hosts."""
        last: Any = InputNode()
        for host in hosts:
            last = self.residents.slice(hosts=host, gpus=0).call.bind(last)
        self.graph = GraphLoad(monarch.graph.compile(last))

    def more_executions(self, count: int) -> int:
        return self.graph.more(count)

    def end_of_graph(self) -> dict[str, Any]:
        return self.graph.end_when_it_fails()

    def fault(self) -> str:
        """Waits for a failure to reach the root."""
        return self.faults.get(timeout=SECONDS)

    def end_casts(self) -> int:
        """Returns how many were sent."""
        return self.casts.end()

    def end_when_it_fails(self) -> dict[str, Any]:
        with self.load.changed:
            assert self.load.changed.wait_for(lambda: self.load.failures, SECONDS), "it does not fail"
        return self.load.end()

    def send_before_answers(self, count: int) -> dict[str, Any]:
        """`count` calls without waiting for answers: how many were sent when the first was answered, and the answers."""
        futures: list[Any] = []
        sent_by_then = []

        def wait() -> None:
            futures[0].get(SECONDS)
            sent_by_then.append(len(futures))

        futures.append(self.residents.call.call(0))
        waiter = threading.Thread(target=wait)
        waiter.start()
        futures.extend(self.residents.call.call(number) for number in range(1, count))
        waiter.join(SECONDS)
        return {"sent": sent_by_then, "answers": [sorted(set(future.get(SECONDS).values())) for future in futures]}

    def told(self) -> list[str]:
        """The failures that reached the root, those that `fault` gave left out."""
        return [self.faults.get() for _ in range(self.faults.qsize())]

    def stop(self) -> None:
        self.hosts.stop().get(SECONDS)

    def shutdown(self) -> None:
        self.hosts.shutdown().get(SECONDS)


def main() -> None:
    client = Client()
    monarch.actor.unhandled_fault_hook = lambda failure: client.faults.put(str(failure))
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        options = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
        try:
            answer = {"ok": getattr(client, name)(*arguments, **options)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
