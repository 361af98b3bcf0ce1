"""A function over many items, and one of them fails."""

from dask.distributed import Client, as_completed

TEXTS = ["tree", "banana", "actor", "mesh"]


def letters(text):
    if not text:
        raise ValueError("no text")
    return len(set(text))


def main():
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        futures = client.map(letters, TEXTS, retries=2)
        print(client.gather(futures))  # [3, 3, 5, 4]

        total = 0
        for _, result in as_completed(client.map(str.upper, TEXTS), with_results=True):
            total += len(result)
        print("total", total)  # total 19

        for future in client.map(letters, ["mesh", ""]):
            error = future.exception()
            print(error or future.result())
    print("closed")  # closed


if __name__ == "__main__":
    main()
