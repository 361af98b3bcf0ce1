"""Tests of which rows the tree pane shows. Pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.admin.payloads import NodePayload
from monarch.admin.screen.tree_state import TreeState
from tests.support import trees
from tests.support.trees import HOST, NOW

HOST_NODE, CLIENT = f"host:agent.agent@{HOST}", f"client@{HOST}"
PROC = f"mesh-0<uid>@{HOST}"


def nodes() -> list[NodePayload]:
    told = [trees.actor("w0"), trees.actor("w1"), trees.actor("log", system=True)]
    gone = [trees.actor("gone", status="stopped", ended=NOW)]
    tree = trees.tree(trees.agent(["uid.0"]), trees.process("client", told, gone), trees.process("uid.0"))
    return list(tree.nodes.values())


def state(found: list[NodePayload] | None = None) -> TreeState:
    made = TreeState()
    made.update(nodes() if found is None else found)
    return made


def labels(shown: TreeState) -> list[str]:
    return [row.guides + row.label for row in shown.rows()]


def test_the_root_is_not_drawn_and_hosts_are_open_at_first() -> None:
    assert labels(state()) == [
        "▼ one  (2 procs)",
        "├─ ▶ client  (3 actors: 1 system, 2 user, 1 stopped)",
        "└─   mesh-0<uid>  (0 actors: 0 user)",
    ]
    assert state().selected == HOST_NODE


def test_expanding_and_collapsing() -> None:
    shown = state()
    shown.move(1)
    shown.toggle()
    assert labels(shown)[1:4] == [
        "├─ ▼ client  (3 actors: 1 system, 2 user, 1 stopped)",
        "│  ├─   w0[0]",
        "│  └─   w1[0]",
    ]
    shown.toggle()
    assert len(shown) == 3


def test_system_and_stopped_actors_are_shown_when_asked() -> None:
    shown = state()
    shown.expand(CLIENT)
    assert len(shown) == 5
    shown.toggle_system()
    assert [row.kind for row in shown.rows()][2:5] == ["system", "user", "user"]
    shown.toggle_stopped()
    assert [row.kind for row in shown.rows()][2:6] == ["system", "user", "user", "stopped"]


def test_failed_actors_are_shown_though_stopped_ones_are_not() -> None:
    tree = trees.tree(trees.process("client", [], [trees.failed("w", "ValueError: x")]))
    shown = state(list(tree.nodes.values()))
    shown.expand(CLIENT)
    assert [(row.label, row.kind, row.note) for row in shown.rows()][2:] == [("w[0]", "failed", "failed")]
    assert shown.rows()[1].kind == "failed"


def test_selection_and_expansion_survive_a_refresh_by_reference() -> None:
    shown = state()
    shown.expand(CLIENT)
    shown.jump(trees.actor("w1").id)
    more = trees.tree(
        trees.process("client", [trees.actor("a"), trees.actor("w0"), trees.actor("w1")]), trees.process("uid.0")
    )
    shown.update(more.nodes.values())
    assert shown.selected == trees.actor("w1").id
    assert [row.selected for row in shown.rows()].index(True) == 4


def test_a_selected_node_that_is_gone_leaves_the_selection_near() -> None:
    shown = state()
    shown.jump(trees.actor("w1").id)
    shown.update(trees.tree(trees.process("client", [trees.actor("w0")]), trees.process("uid.0")).nodes.values())
    assert shown.selected in shown.nodes
    assert sum(row.selected for row in shown.rows()) == 1


def test_a_node_that_is_hidden_hands_the_selection_to_its_parent() -> None:
    shown = state()
    shown.toggle_system()
    assert shown.jump(trees.actor("log").id)
    shown.toggle_system()
    assert shown.selected == CLIENT


def test_keys_stay_within_the_rows() -> None:
    shown = state()
    shown.move(-5)
    assert shown.position == 0
    shown.move(100)
    assert shown.position == 2
    shown.first()
    shown.last()
    assert shown.position == 2


def test_collapse_all_leaves_the_hosts() -> None:
    shown = state()
    shown.jump(trees.actor("w1").id)
    shown.collapse_all()
    assert len(shown) == 1 and shown.selected == HOST_NODE


def test_the_filter_shows_what_has_the_text_and_what_is_above_it() -> None:
    shown = state()
    shown.set_filter("W1")
    assert [row.label for row in shown.rows()][2:] == ["w1[0]"]
    assert shown.selected == trees.actor("w1").id
    shown.set_filter("")
    assert len(shown) == 3


def test_the_filter_finds_actors_by_their_status() -> None:
    tree = trees.tree(trees.process("client", [trees.actor("a"), trees.busy("b", 5.0)]))
    shown = state(list(tree.nodes.values()))
    shown.set_filter("processing")
    assert [row.label for row in shown.rows()][2:] == ["b[0]"]


def test_a_filter_that_nothing_has() -> None:
    shown = state()
    shown.set_filter("no such thing")
    assert len(shown) == 0 and shown.rows() == []
    shown.move(1)
    shown.toggle()
    shown.set_filter("")
    assert len(shown) == 3


def test_from_a_failed_actor_to_its_root_cause() -> None:
    first = trees.failed("first", "it", proc="mesh-0<uid>")
    owner = trees.failed("owner", "because", ("first", 0, f"{HOST}/uid.0", "first"))
    tree = trees.tree(trees.process("uid.0", [], [first]), trees.process("client", [], [owner]))
    shown = state(list(tree.nodes.values()))
    assert shown.jump(owner.id)
    assert shown.root_cause() == first.id
    assert shown.jump(shown.root_cause())
    assert (shown.selected, shown.root_cause()) == (first.id, first.id)


def test_from_a_process_to_what_failed_there() -> None:
    tree = trees.tree(trees.process("client", [trees.actor("a")], [trees.failed("w", "x")]))
    shown = state(list(tree.nodes.values()))
    shown.jump(CLIENT)
    assert shown.root_cause() == trees.actor("w").id
    shown.jump(trees.actor("a").id)
    assert shown.root_cause() == ""


@pytest.mark.parametrize("reference", ["", "root", "nobody@nowhere"])
def test_a_jump_to_what_is_no_row(reference: str) -> None:
    shown = state()
    assert not shown.jump(reference)
    assert shown.selected == HOST_NODE


def test_the_right_column_says_for_how_long_and_for_whom() -> None:
    stuck = trees.busy("b", 75.0, waits="db.get", proc="mesh-0<uid>")
    tree = trees.tree(
        trees.process("client"), trees.process("uid.0", [stuck, trees.busy("c", 0.2, proc="mesh-0<uid>")])
    )
    shown = state(list(tree.nodes.values()))
    shown.expand(PROC)
    notes = {row.label: row.note for row in shown.rows()}
    assert notes["b[0]"] == "step 1m15s → db.get"
    assert notes["c[0]"] == ""
    assert notes["mesh-0<uid>  (2 actors: 2 user)"] == "1m15s"


def test_only_rows_in_sight_are_made() -> None:
    found = list(trees.tree(*trees.program_with(3000, 3)).nodes.values())
    shown = state(found)
    for rank in range(3):
        shown.expand(f"mesh-{rank}<uid>@{HOST}")
    assert len(shown) == 1 + 1 + 3 + 3000
    assert [row.label for row in shown.rows(1005, 2)] == [row.label for row in shown.rows()][1005:1007]
    assert shown.rows(10_000, 5) == []


KEYS = st.sampled_from(
    ["move", "back", "toggle", "system", "stopped", "collapse", "filter", "clear", "jump", "less", "more"]
)


@given(st.lists(KEYS, max_size=30))
def test_whatever_is_pressed_one_row_is_selected(keys: list[str]) -> None:
    shown, all_of_them = state(), nodes()
    fewer = list(trees.tree(trees.process("client", [trees.actor("w0")])).nodes.values())
    act = {
        "move": lambda: shown.move(1),
        "back": lambda: shown.move(-2),
        "toggle": shown.toggle,
        "system": shown.toggle_system,
        "stopped": shown.toggle_stopped,
        "collapse": shown.collapse_all,
        "filter": lambda: shown.set_filter("w"),
        "clear": lambda: shown.set_filter(""),
        "jump": lambda: shown.jump(trees.actor("w1").id),
        "less": lambda: shown.update(fewer),
        "more": lambda: shown.update(all_of_them),
    }
    for key in keys:
        act[key]()
        assert sum(row.selected for row in shown.rows()) == 1
