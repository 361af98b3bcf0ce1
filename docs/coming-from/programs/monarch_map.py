"""A function over many items, and one of them fails."""

from monarch.actor import Actor, ActorError, endpoint, this_host

TEXTS = ["tree", "banana", "actor", "mesh"]


class Worker(Actor):
    @endpoint
    def letters(self, text: str) -> int:
        if not text:
            raise ValueError("no text")
        return len(set(text))

    @endpoint
    def upper(self, text: str) -> str:
        return text.upper()


def main() -> None:
    procs = this_host().spawn_procs({"workers": 2})
    workers = procs.spawn("workers", Worker)
    print(list(workers.letters.map(TEXTS, retries=2)))  # [3, 3, 5, 4]

    total = 0
    for result in workers.upper.map(TEXTS, ordered=False):
        total += len(result)
    print("total", total)  # total 19

    for outcome in workers.letters.map(["mesh", ""], return_exceptions=True):
        print(outcome.exception if isinstance(outcome, ActorError) else outcome)
    procs.stop().get()
    print("closed")  # closed


if __name__ == "__main__":
    main()
