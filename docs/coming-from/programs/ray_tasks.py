"""Tasks, and their results as they are there."""

import ray


@ray.remote(max_retries=2)
def square(n):
    return n * n


def main():
    ray.init()
    print(ray.get([square.remote(n) for n in range(8)]))  # [0, 1, 4, 9, 16, 25, 36, 49]

    total, waiting = 0, [square.remote(n) for n in range(8)]
    while waiting:
        ready, waiting = ray.wait(waiting)
        total += ray.get(ready[0])
    print("total", total)  # total 140
    ray.shutdown()


if __name__ == "__main__":
    main()
