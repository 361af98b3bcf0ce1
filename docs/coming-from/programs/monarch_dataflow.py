"""Tasks whose arguments are results of others, without waiting in between."""

from monarch.actor import this_host
from monarch.references import put, task


def load(shard: int) -> list[int]:
    return [shard] * 100


@task(retries=2, retry_on=OSError)
def summed(*shards: list[int]) -> int:
    return sum(map(sum, shards))


def count(table: list[str], word: str) -> int:
    return table.count(word)


def main() -> None:
    procs = this_host().spawn_procs({"workers": 2})
    shards = [procs.submit(load, shard) for shard in range(4)]
    print(procs.submit(summed, *shards).get())  # 600
    table = put(["a", "b", "a"])
    print([ref.get() for ref in [procs.submit(count, table, word) for word in "ab"]])  # [2, 1]
    procs.stop().get()


if __name__ == "__main__":
    main()
