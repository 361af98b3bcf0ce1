"""A tree of actors, of which a branch is lost."""

import os

from monarch.actor import Actor, SupervisionError, endpoint, this_host


class Node(Actor):
    def __init__(self, depth: int) -> None:
        self.children: list[Node] = []
        if depth:
            procs = this_host().spawn_procs({"children": 2})  # this actor owns them
            nodes = procs.spawn("nodes", Node, depth - 1)
            self.children = [nodes.slice(children=rank) for rank in range(2)]

    @endpoint
    def count(self) -> int:
        """Actors that are there, from here on down."""
        total = 1
        for child in [child.count.call_one() for child in self.children]:
            try:
                total += child.get()
            except SupervisionError:
                pass
        return total

    @endpoint
    def lose(self) -> None:
        try:
            self.children[0].die.call_one().get()
        except SupervisionError:
            pass

    @endpoint
    def die(self) -> None:
        os._exit(1)  # its children end too: their owner is gone


def main() -> None:
    procs = this_host().spawn_procs()
    root = procs.spawn("root", Node, 2)
    print(root.count.call_one().get(), "actors")  # 7 actors
    root.lose.call_one().get()
    print(root.count.call_one().get(), "actors")  # 4 actors
    procs.stop().get()


if __name__ == "__main__":
    main()
