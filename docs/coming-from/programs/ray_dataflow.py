"""Tasks whose arguments are results of others, without waiting in between."""

import ray


@ray.remote
def load(shard):
    return [shard] * 100


@ray.remote(max_retries=2, retry_exceptions=[OSError])
def summed(*shards):
    return sum(map(sum, shards))


@ray.remote
def count(table, word):
    return table.count(word)


def main():
    ray.init()
    shards = [load.remote(shard) for shard in range(4)]
    print(ray.get(summed.remote(*shards)))  # 600
    table = ray.put(["a", "b", "a"])
    print(ray.get([count.remote(table, word) for word in "ab"]))  # [2, 1]
    ray.shutdown()


if __name__ == "__main__":
    main()
