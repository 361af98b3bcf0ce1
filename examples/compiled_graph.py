"""A compiled graph: text goes through a chain of stages and a row of counters, without a message for each call.

    python examples/compiled_graph.py
    python examples/compiled_graph.py --workers tcp://node1:26600 tcp://node2:26600  # over these: docs/hosts.md

`bind` in the place of `call` says what is called with what; `compile` has the actors join; `execute` runs it. Eight
executions are under way at once, so all stages work at the same time. An execution that fails does so alone.
"""

import argparse

from monarch import graph
from monarch.actor import Actor, ActorError, ValueMesh, attach_to_workers, current_rank, endpoint, this_host
from monarch.graph import InputNode, MultiOutput

TEXTS = ["A rose is a rose is a rose", "To be, or not to be", "", "Never, never, never!"]
COUNTERS = 3


class Stage(Actor):
    """Prepares texts."""

    @endpoint
    def clean(self, text: str) -> str:
        if not text:
            raise ValueError("an empty text")
        return "".join(letter for letter in text.lower() if letter.isalpha() or letter == " ")

    @endpoint
    def words(self, text: str) -> list[str]:
        return text.split()


class Counter(Actor):
    """Counts the words of which this rank takes care, and adds up what all have counted."""

    @endpoint
    def count(self, words: list[str]) -> int:
        return len({word for word in words if len(word) % COUNTERS == current_rank().rank})

    @endpoint
    def total(self, counts: ValueMesh[int]) -> int:
        return sum(counts.values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", nargs="+", default=[], help="hosts, where `monarch worker` runs")
    workers = parser.parse_args().workers
    first = last = this_host()
    if workers:
        hosts = attach_to_workers(workers=workers)
        first, last = hosts.slice(hosts=0), hosts.slice(hosts=len(workers) - 1)
    stages = first.spawn_procs({"stage": 2}).spawn("stages", Stage)
    counters = last.spawn_procs({"counter": COUNTERS}).spawn("counters", Counter)
    with InputNode() as given:
        cleaned = stages.slice(stage=0).clean.bind(given)
        words = stages.slice(stage=1).words.bind(cleaned)
        counts = counters.count.bind(words)
        total = counters.slice(counter=0).total.bind(counts)

    with graph.compile(MultiOutput([total, counts]), depth=8, buffer="64KiB") as compiled:
        futures = [compiled.execute(text) for text in TEXTS]
        for text, future in zip(TEXTS, futures, strict=True):
            try:
                different, by_counter = future.get()
                print(f"{text!r}: {different} different words, by counter {by_counter.values()}")
            except ActorError as error:
                print(f"{text!r}: {error.exception}")


if __name__ == "__main__":
    main()
