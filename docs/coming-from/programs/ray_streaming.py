"""Results while the work goes on, from two actors at once."""

import ray


@ray.remote
class Reader:
    def __init__(self, name):
        self.name = name

    def lines(self, count):
        for number in range(count):
            yield f"{self.name}{number}"


def main():
    ray.init()
    readers = [Reader.remote(name) for name in "ab"]
    streams = [reader.lines.remote(3) for reader in readers]  # of references
    lines = []
    while streams:
        (stream,), streams = ray.wait(streams)
        try:
            lines.append(ray.get(next(stream)))
        except StopIteration:
            continue
        streams.append(stream)
    print(sorted(lines))  # ['a0', 'a1', 'a2', 'b0', 'b1', 'b2']
    ray.shutdown()


if __name__ == "__main__":
    main()
