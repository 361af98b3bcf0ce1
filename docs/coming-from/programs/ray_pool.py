"""Many items over a few workers that hold something costly."""

import ray
from ray.util import ActorPool

TEXTS = ["tree", "banana", "actor", "mesh", "sky", "queue"]


@ray.remote
class Scorer:
    def __init__(self, vowels):
        self.vowels = set(vowels)  # in earnest: a model

    def score(self, text):
        return sum(letter in self.vowels for letter in text)


def main():
    ray.init()
    pool = ActorPool([Scorer.remote("aeiou") for _ in range(2)])
    print(list(pool.map(lambda scorer, text: scorer.score.remote(text), TEXTS)))  # [2, 3, 2, 1, 0, 4]
    print(sum(pool.map_unordered(lambda scorer, text: scorer.score.remote(text), TEXTS)))  # 12
    ray.shutdown()


if __name__ == "__main__":
    main()
