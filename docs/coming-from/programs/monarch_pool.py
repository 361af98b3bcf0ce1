"""Many items over a few workers that hold something costly."""

from monarch.actor import Actor, endpoint, this_host

TEXTS = ["tree", "banana", "actor", "mesh", "sky", "queue"]


class Scorer(Actor):
    def __init__(self, vowels: str) -> None:
        self.vowels = set(vowels)  # in earnest: a model

    @endpoint
    def score(self, text: str) -> int:
        return sum(letter in self.vowels for letter in text)


def main() -> None:
    procs = this_host().spawn_procs({"workers": 2})
    scorers = procs.spawn("scorers", Scorer, "aeiou")
    print(list(scorers.score.map(TEXTS)))  # [2, 3, 2, 1, 0, 4]
    print(sum(scorers.score.map(TEXTS, ordered=False)))  # 12
    procs.stop().get()


if __name__ == "__main__":
    main()
