"""The last lines of processes, as their agent keeps them."""

from __future__ import annotations

from monarch._mesh.output import kept
from monarch._mesh.output.kept import KeptOutput, KeptOutputs, OutputRequest


def texts(told: kept.OutputPage) -> list[str]:
    return [line.text for line in told.lines]


def output(rank: int = 0, mesh: str = "mesh") -> KeptOutput:
    return KeptOutput(f"unix:/x/{mesh}.{rank}", 0, mesh, rank, True, "")


def test_lines_and_where_to_go_on() -> None:
    one = output()
    one.take(1, ["a", "b"], 10.0)
    one.take(2, ["c"], 20.0)
    told = one.tell(OutputRequest(), 1_000)
    assert [(line.number, line.at, line.stream, line.text) for line in told.lines] == [
        (1, 10.0, 1, "a"),
        (2, 10.0, 1, "b"),
        (3, 20.0, 2, "c"),
    ]
    assert told.last == 3
    assert texts(one.tell(OutputRequest(lines=2), 1_000)) == ["b", "c"]
    assert texts(one.tell(OutputRequest(since=15.0), 1_000)) == ["c"]
    assert texts(one.tell(OutputRequest(lines=0), 1_000)) == []
    assert texts(one.tell(OutputRequest(after={one.key: 2}), 1_000)) == ["c"]
    assert texts(one.tell(OutputRequest(), 2)) == ["b", "c"], "no more than there is room for"


def test_bounds() -> None:
    one = output()
    one.take(1, (str(number) for number in range(3 * kept.LINES)), 1.0)
    told = one.tell(OutputRequest(after={one.key: 10}), 1 << 20)
    assert len(told.lines) == kept.LINES
    assert told.missed == 2 * kept.LINES - 10
    one.take(1, ["x" * 4_000] * 100, 2.0)
    assert sum(map(len, texts(one.tell(OutputRequest(), 1 << 30)))) <= kept.SIZE


def test_processes_of_a_host() -> None:
    host = KeptOutputs()
    outputs = [output(rank, mesh) for mesh in ("a", "b") for rank in range(3)]
    for one in outputs:
        host.add(one)
        one.take(1, [f"{one.mesh}{one.rank}"], 1.0)
    host.end(outputs[0])
    told = host.tell(OutputRequest())
    assert (told[0].mesh, told[0].rank, told[0].ended) == ("a", 0, True)
    assert len(told) == 6
    assert [one.rank for one in host.tell(OutputRequest("b", [0, 2]))] == [0, 2]
    for _ in range(2 * kept.ENDED):
        again = output()
        host.add(again)
        host.end(again)
    assert len(host.tell(OutputRequest())) == 5 + kept.ENDED
