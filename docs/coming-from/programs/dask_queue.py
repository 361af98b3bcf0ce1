"""Producers that fill a bounded queue, and a variable that all can read."""

from dask.distributed import Client, Queue, Variable


def produce(name, count):
    factor, queue = Variable("factor").get(), Queue("numbers")
    for number in range(count):
        queue.put(f"{name}{factor * number}")  # waits while the queue is full


def main():
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        Variable("factor").set(10)
        queue = Queue("numbers", maxsize=2)
        futures = [client.submit(produce, name, 3) for name in "ab"]
        print(sorted(queue.get() for _ in range(6)))  # ['a0', 'a10', 'a20', 'b0', 'b10', 'b20']
        client.gather(futures)


if __name__ == "__main__":
    main()
