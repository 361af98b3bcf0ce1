"""What a cast and a call cost, as sums of few constants; and how the constants are found. Pure, and without numpy.

The work of one call of n receivers on h hosts, by who does it; `k` is how many agents the client's own sends to (the tree's
width at most). Each is a sum of constants times counts, fitted to measured processor time. Elapsed time follows from it in
two ways: on one machine that simulates all, where work waits for a core; and on as many machines as there are hosts,
where only what lies one after the other counts (`Cluster`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Counts = Mapping[str, float]
Terms = Mapping[str, Callable[[Counts], float]]

# Whose work: constant -> what it is multiplied with. The keys are those of the measured points, less "_cpu".
ONE: Callable[[Counts], float] = lambda point: 1.0  # noqa: E731
WORK: Mapping[str, Terms] = {
    "cast_client": {"a cast": ONE},
    "cast_agent": {"a child": lambda point: point["children"]},
    "cast_workers": {"a host": lambda point: point["hosts"], "a receiver": lambda point: point["procs"]},
    "cast_procs": {"a receiver": lambda point: point["procs"]},
    "call_client": {"a call": ONE, "an answer": lambda point: point["procs"]},
    "call_io": {"a call": ONE, "an answer": lambda point: point["procs"]},
    "call_agent": {"a child": lambda point: point["children"], "an answer": lambda point: point["procs"]},
    "call_workers": {"a host": lambda point: point["hosts"], "a receiver": lambda point: point["procs"]},
    "call_procs": {"a receiver": lambda point: point["procs"]},
}
WIDTH = 16


def counts(hosts: int, per_host: int, width: int = WIDTH) -> dict[str, float]:
    return {"hosts": hosts, "procs": hosts * per_host, "children": min(width, hosts)}


@dataclass(frozen=True)
class Fit:
    """`constants` in seconds, by what they are multiplied with; `error` the median of |model / measured - 1|."""

    constants: Mapping[str, float]
    error: float

    def of(self, terms: Terms, point: Counts) -> float:
        return sum(self.constants[name] * term(point) for name, term in terms.items())


def fit(points: Sequence[Counts], values: Sequence[float], terms: Terms) -> Fit:
    """Least squares, weighted with the inverse of the measured value: between absolute errors, for which small meshes would
    not count, and relative ones, for which they would be all. No constant is below 0: one that would be is left out."""
    used = dict(terms)
    weights = [value**-0.5 for value in values]
    goals = [value**0.5 for value in values]
    while True:
        rows = [[weight * term(point) for term in used.values()] for point, weight in zip(points, weights, strict=True)]
        found = dict(zip(used, solve(rows, goals), strict=True))
        negative = [name for name, constant in found.items() if constant < 0]
        if not negative:
            break
        del used[min(negative, key=found.__getitem__)]
    made = Fit({name: found.get(name, 0.0) for name in terms}, 0.0)
    errors = sorted(abs(made.of(terms, point) / value - 1) for point, value in zip(points, values, strict=True))
    return Fit(made.constants, errors[len(errors) // 2])


def solve(rows: Sequence[Sequence[float]], goals: Sequence[float]) -> list[float]:
    """The x for which the sum of (row . x - goal)**2 is least: normal equations, Gauss-Jordan."""
    size = len(rows[0]) if rows else 0
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in range(size)]
        + [sum(row[i] * goal for row, goal in zip(rows, goals, strict=True))]
        for i in range(size)
    ]
    for i in range(size):
        pivot = max(range(i, size), key=lambda at: abs(matrix[at][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        matrix[i] = [entry / matrix[i][i] for entry in matrix[i]]
        for j in range(size):
            if j != i:
                matrix[j] = [one - matrix[j][i] * other for one, other in zip(matrix[j], matrix[i], strict=True)]
    return [row[-1] for row in matrix]


def fits(points: Sequence[Counts]) -> dict[str, Fit]:
    """One for each kind of work; `points` have the measured times as `<kind>_cpu`."""
    made = {}
    for kind, terms in WORK.items():
        known = [point for point in points if point.get(f"{kind}_cpu", 0.0) > 0]
        made[kind] = fit(known, [point[f"{kind}_cpu"] for point in known], terms)
    return made


def work(made: Mapping[str, Fit], what: str, point: Counts) -> float:
    """Processor seconds of all that take part in one "cast" or "call"."""
    return sum(made[kind].of(terms, point) for kind, terms in WORK.items() if kind.startswith(what))


@dataclass(frozen=True)
class Cluster:
    """Every host a machine of its own; `latency` seconds one way between two of them, wake-up of the receiver included."""

    made: Mapping[str, Fit]
    latency: float
    width: int = WIDTH

    def levels(self, hosts: int) -> list[int]:
        """How many children each agent on the longest way down has, the client's own first."""
        left, found = hosts, []
        while left:
            children = min(self.width, left)
            found.append(children)
            left = -(-left // children) - 1  # the largest part, less the child itself
        return found

    def _way_down(self, what: str, levels: Sequence[int], per_host: int) -> float:
        """Until the last process has it: what is sent one after the other at each level, then on."""
        child = self.made[f"{what}_agent"].constants["a child"]
        workers, procs = self.made[f"{what}_workers"].constants, self.made[f"{what}_procs"].constants
        last = workers["a receiver"] * per_host + procs["a receiver"]
        return sum(child * children + self.latency + workers["a host"] for children in levels) + last

    def cast(self, hosts: int, per_host: int) -> float:
        """Seconds until the last receiver has handled one cast."""
        return self.made["cast_client"].constants["a cast"] + self._way_down("cast", self.levels(hosts), per_host)

    def casts(self, hosts: int, per_host: int) -> float:
        """Seconds a cast in a long row of them: of whoever has most to do."""
        made, levels = self.made, self.levels(hosts)
        child = made["cast_agent"].constants["a child"]
        workers = made["cast_workers"].constants
        agent = workers["a host"] + workers["a receiver"] * per_host + child * (levels[1] if len(levels) > 1 else 0)
        return max(child * levels[0], agent, made["cast_procs"].constants["a receiver"])

    def call(self, hosts: int, per_host: int) -> float:
        """Seconds of a call: down, up again, and all the answers through the client's agent, I/O thread and thread."""
        made, levels, answers = self.made, self.levels(hosts), hosts * per_host
        way = self._way_down("call", levels, per_host) + len(levels) * self.latency
        each = sum(made[kind].constants["an answer"] for kind in ("call_agent", "call_io", "call_client"))
        fixed = made["call_client"].constants["a call"] + made["call_io"].constants["a call"]
        inner = made["call_agent"].constants["an answer"] * answers / levels[0] if len(levels) > 1 else 0.0
        return fixed + way + each * answers + inner
