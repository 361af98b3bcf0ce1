"""An object with state that lives on a worker."""

from dask.distributed import Client


class Counter:
    value = 0  # readable from outside because the class has it

    def __init__(self, start):
        self.value = start

    def add(self, n):
        self.value += n
        return self.value


def main():
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        counter = client.submit(Counter, 10, actor=True).result()
        print(counter.add(1).result())  # 11
        print([future.result() for future in [counter.add(1) for _ in range(3)]])  # [12, 13, 14]
        print(counter.value)  # 14


if __name__ == "__main__":
    main()
