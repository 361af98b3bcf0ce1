"""The ranks on the screen: which rows there are, their order, and the lines that a terminal of some size shows of them."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from monarch._devices.own_figures import DeviceFigures
from monarch._mesh.inspection.diagnosis import Finding
from monarch._mesh.inspection.host_description import HostFacts
from monarch._text import columns
from monarch.admin.payloads import NodePayload
from monarch.admin.screen import attaching, once, ranks_page
from monarch.admin.screen.attaching import StoppedEndpoint
from monarch.admin.screen.ranks import RankRow, RanksState
from monarch.admin.screen.ranks_page import ScreenAbout
from tests.support import trees
from tests.support.hostile import NAME, fit

SENTENCE = "ranks 0-2 wait in all_reduce #3 of group default_pg; rank 3 has not entered it (at data.py:31 in load())"
ABOUT = ScreenAbout("monarch  pid 100", SENTENCE, wrong=True, more=1)


def finding(mesh: str, *ranks: int) -> Finding:
    return Finding("collective", SENTENCE, [], "", mesh, list(ranks))


def state_of(*told: Any, silent: dict[str, str] | None = None) -> RanksState:
    state = RanksState()
    state.update(trees.tree(*told, silent=silent).nodes.values())
    return state


def ranks(number: int) -> RanksState:
    """A mesh of so many ranks that are busy for as many seconds as their rank, and an hour."""
    state = RanksState()
    state.update(nodes_of(number))
    return state


@functools.cache
def nodes_of(number: int) -> list[NodePayload]:
    names = [f"uid.{rank}" for rank in range(number)]
    told: list[Any] = [trees.agent(names)]
    for rank, name in enumerate(names):
        busy = trees.busy("trainer", 3600.0 + rank, rank=rank, proc=f"mesh-{rank}<uid>")
        told.append(trees.process(name, [busy], rss=(number - rank) << 20))
    return list(trees.tree(*told).nodes.values())


def shown(state: RanksState, width: int = 80, height: int | None = 24, about: ScreenAbout = ABOUT) -> list[str]:
    return ranks_page.text(ranks_page.page(state, about, width, height)).split("\n")


def row_of(state: RanksState, name: str) -> RankRow:
    (row,) = [row for row in state.all if row.name == name]
    return row


# --- rows


def test_what_a_rank_does() -> None:
    state = state_of(
        trees.agent(["uid.0", "uid.1"], [trees.ended("uid.2", 7, tail=["", "ValueError: x"])]),
        trees.process("client", [trees.actor("root", status="client", cls="")]),
        trees.process("uid.0", [trees.busy("w", 75.0, waits="db.get"), trees.actor("idle")]),
        trees.process("uid.1", [trees.actor("w", 1)], [trees.failed("first", "ValueError: on purpose")]),
        silent={f"{trees.HOST}/uid.3": "it did not answer within 5 s"},
    )
    assert [row.name for row in state.rows] == ["client", "mesh[0]", "mesh[1]", "mesh[2]", "mesh[3]"]
    busy = row_of(state, "mesh[0]")
    assert (busy.state, busy.does, busy.seconds, busy.place) == ("processing", "step → db.get", 75.0, "t.py:3")
    assert (busy.host, busy.memory, busy.processor) == ("one", 3 << 20, None)
    failed = row_of(state, "mesh[1]")
    assert (failed.state, failed.does, failed.place) == ("failed", "ValueError: on purpose", "")
    ended = row_of(state, "mesh[2]")
    assert (ended.state, ended.does) == ("failed", "exit status 7: ValueError: x")
    silent = row_of(state, "mesh[3]")
    assert (silent.state, silent.does) == ("unknown", "it did not answer within 5 s")


@pytest.mark.parametrize(("state", "word"), [("stopped", "unknown"), ("stopping", "stopping"), ("running", "idle")])
def test_the_state_of_a_process_counts_beside_its_actors(state: str, word: str) -> None:
    found = state_of(trees.agent(["uid.0"], state=state), trees.process("uid.0", [trees.actor("w")]))
    assert found.rows[0].state == word


def test_a_mesh_is_called_as_the_program_calls_it() -> None:
    """One without a name is called as its actors are, and the second of a name has a number."""
    state = state_of(
        trees.process("a.0", [trees.actor("loaders"), trees.actor("log", system=True)], mesh="anon", started=1.0),
        trees.process("b.0", [trees.actor("x")], mesh="trainers", started=2.0),
        trees.process("c.0", [trees.actor("x")], mesh="trainers", started=3.0),
        trees.process("d.0", [], mesh="anon", started=4.0),
    )
    assert [row.name for row in state.rows] == ["anon[0]", "loaders[0]", "trainers[0]", "trainers #2[0]"]


def test_the_use_of_a_processor_is_that_between_two_looks() -> None:
    state = RanksState()
    for now, processors in ((trees.NOW, 10.0), (trees.NOW + 4, 13.0)):
        told = trees.process("uid.0", [], now=now, processors=processors)
        state.update(trees.tree(told).nodes.values())
    assert state.rows[0].processor == pytest.approx(0.75)


def test_ranks_that_the_doctor_names_are_marked_and_the_first_is_selected_until_a_key_moves() -> None:
    state = ranks(4)
    assert state.selected == state.rows[0].reference
    state.blame([finding("mesh", 2)])
    assert [row.blamed for row in state.rows] == [False, False, True, False]
    assert state.row is not None and state.row.rank == 2
    state.move(1)
    state.blame([finding("trainer", 0)])  # by the mesh of its actors
    assert [row.blamed for row in state.rows] == [True, False, False, False]
    assert state.row.rank == 3


# --- keys


def test_sorting_and_the_other_way_round() -> None:
    state = ranks(4)
    state.sort("T")
    assert [row.rank for row in state.rows] == [3, 2, 1, 0] and state.row is not None and state.row.rank == 3
    state.sort("T")
    assert [row.rank for row in state.rows] == [0, 1, 2, 3]
    state.sort("M")
    assert [row.rank for row in state.rows] == [0, 1, 2, 3]
    state.sort("N")
    state.sort("N")
    assert [row.rank for row in state.rows] == [3, 2, 1, 0]
    state.blame([finding("mesh", 1)])
    state.sort("S")
    assert state.rows[0].rank == 1


def test_the_filter_keeps_a_selection_among_what_it_shows() -> None:
    state = ranks(12)
    state.last()
    state.set_filter("MESH[1")
    assert [row.rank for row in state.rows] == [1, 10, 11] and state.row is not None and state.row.rank == 11
    state.set_filter("mesh[1]")
    assert state.row is not None and state.row.rank == 1
    state.set_filter("nothing has this")
    assert state.row is None and state.position == 0
    state.move(1)
    assert any("Esc shows all" in line for line in shown(state))
    state.set_filter("")
    assert len(state.rows) == 12


# --- lines


def test_the_first_sight() -> None:
    state = ranks(4)
    state.blame([finding("mesh", 3)])
    lines = shown(state)
    assert lines[0] == "monarch  pid 100"
    assert " ".join(lines[1:3]) == f"! {SENTENCE} (and 1 more: d)"
    assert lines[3] == "mesh  ###!  4: 4 processing"
    assert lines[4] == "! named by the doctor  # processing"
    assert lines[5].split() == ["RANK↓", "STATE", "ENDPOINT", "TIME", "LINE", "HOST", "CPU", "MEM"]
    assert lines[6].split() == ["mesh[0]", "processing", "step", "1h00m", "t.py:3", "one", "4M"]
    assert lines[9].startswith("> mesh[3]")
    assert lines[-1] == "/ filter  Enter stacks  l logs  d doctor  m metrics  b debug  t tree  ? help"
    assert shown(state, 120)[-1].endswith("  ? help  NTPMUS sort  q quit")
    assert len(lines) == 24


@pytest.mark.parametrize("number", [0, 1, 70, 2_000])
@pytest.mark.parametrize("size", [(40, 8), (80, 24), (120, 40), (200, 50)])
def test_no_line_is_longer_than_the_screen_and_none_too_many(number: int, size: tuple[int, int]) -> None:
    state = ranks(number)
    state.last()
    lines = shown(state, *size)
    assert len(lines) == size[1]
    assert max(map(columns, lines)) <= size[0]
    assert "/ filter" in lines[-1]
    if number and size[1] > 8:
        assert any(line.startswith(f"> mesh[{number - 1}]") for line in lines), "what is selected is in sight"


def test_many_ranks_are_folded_and_the_worst_is_seen() -> None:
    state = ranks(2_000)
    state.all[471] = state.all[471]._replace(state="failed")
    grid = [line for line in shown(state) if line.strip()[:1].isdigit() and "#" in line]
    assert len(grid) <= 9 and "".join(grid).count("X") == 1
    assert any("a sign is" in line for line in shown(state, 120))


def test_meshes_that_are_too_many_for_the_screen_are_counted_and_what_is_wrong_comes_first() -> None:
    told = [trees.process(f"m{n}.0", [trees.actor("w")], mesh=f"mesh{n}", started=float(n)) for n in range(40)]
    state = state_of(*told)
    state.blame([finding("mesh33", 0)])
    lines = shown(state)
    assert lines[3].startswith("mesh33  !")
    assert any(line.startswith("and ") and line.endswith(" more meshes") for line in lines)


def test_nothing_wrong_an_error_and_before_the_doctor_has_looked() -> None:
    state = ranks(1)
    assert shown(state, about=ScreenAbout("x", "nothing is wrong"))[1] == "nothing is wrong"
    assert shown(state, about=ScreenAbout("x", "a", wrong=True, error="the program has ended"))[1].startswith(
        "ERROR: the"
    )
    assert shown(state, about=ScreenAbout("x", ""))[1].startswith("mesh")


def test_without_a_terminal_all_ranks_are_there_and_no_keys() -> None:
    state = ranks(100)
    lines = shown(state, height=None)
    assert sum(line.strip().startswith("mesh[") for line in lines) == 100
    assert "filter" not in lines[-1] and not any(line.startswith(">") for line in lines)


def test_what_a_program_calls_itself_is_written_out() -> None:
    told: list[HostFacts | Any] = [
        trees.agent(["uid.0"]),
        trees.process("client", [trees.actor("root", status="client", cls="")], command=NAME, user=NAME),
        trees.process("uid.0", [trees.busy(NAME, 5.0, waits=NAME)], mesh=NAME, hostname=NAME),
        trees.process("uid.1", [], [trees.failed("x", f"ValueError: {NAME}")], mesh=NAME),
    ]
    state = state_of(*told)
    state.filter = NAME
    assert fit("".join(shown(state, 200, 50, ScreenAbout(NAME, NAME, error=NAME))))
    nodes = list(trees.tree(*told).nodes.values())
    assert fit(once.ranks(NAME, nodes, nodes, None, trees.NOW, 120))


def test_gpus_have_a_column_where_there_are_some_and_order_the_ranks() -> None:
    gib = 1 << 30
    figures = {0: DeviceFigures(0, 12.0, 3 * gib, 80 * gib), 1: DeviceFigures(1, 97.0, 71 * gib, 80 * gib)}
    names = ["uid.0", "uid.1", "uid.2"]
    state = state_of(
        trees.agent(names),
        *(trees.process(name, [trees.actor("w", rank)], device=figures.get(rank)) for rank, name in enumerate(names)),
    )
    assert "GPU" not in "\n".join(shown(ranks(2)))
    lines = shown(state, 120)
    head = next(line for line in lines if "RANK" in line)
    assert head.split()[-1] == "GPU" and any(line.endswith("  12% 3.0G/80.0G") for line in lines)
    state.sort("U")
    assert [row.rank for row in state.rows] == [1, 0, 2]
    assert "GPU↓" in "\n".join(shown(state, 120))
    state.sort("U")
    assert [row.rank for row in state.rows] == [2, 0, 1]


# --- the debugger


def test_which_rank_stands_at_a_breakpoint_and_how_another_is_attached_to() -> None:
    state = ranks(2)
    state.update(
        [
            *nodes_of(2),
            *trees.tree(trees.process("client", [trees.actor("root", status="client", cls="")])).nodes.values(),
        ]
    )
    at = StoppedEndpoint("trainer", 1, "__main__.train", 18, "host/uid.0")
    assert attaching.stopped_in("host/uid.1", [at]) is None and attaching.stopped_in("host/uid.0", [at]) == at
    assert attaching.command(7, at) == ["-m", "monarch", "debug", "attach", "trainer", "1", "--pid", "7"]
    said = attaching.how(row_of(state, "mesh[0]"), 7)
    assert "mesh[0] stands at no breakpoint" in said and "`monarch debug --pid 7 --dap 0 --mesh mesh`" in said
    assert "its own terminal debugs" in attaching.how(row_of(state, "client"), 7)
