"""The tree that is made of what processes and host agents tell. Pure."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from monarch.admin.payloads import NodePayload
from monarch.admin.program_tree import ProgramTree, status_text
from monarch.dashboard.routes.admin_tree_page import page
from tests.support import trees
from tests.support.trees import HOST, NOW

CLIENT = f"client@{HOST}"
HOST_NODE = f"host:agent.agent@{HOST}"
FIRST, SECOND = f"mesh-0<uid>@{HOST}", f"mesh-1<uid>@{HOST}"


def properties(tree: ProgramTree, reference: str) -> dict[str, Any]:
    """Returns them as JSON has them."""
    found: dict[str, Any] = json.loads(msgspec.json.encode(tree.nodes[reference]))["properties"]
    assert len(found) == 1
    return found


def test_root_hosts_procs_and_actors_in_natural_order() -> None:
    names = [f"uid.{rank}" for rank in range(11)]
    tree = trees.tree(trees.agent(names), *[trees.process(name) for name in reversed(names)], trees.process("client"))
    assert tree.nodes["root"].children == [HOST_NODE]
    assert tree.nodes[HOST_NODE].children == [CLIENT, *(f"mesh-{rank}<uid>@{HOST}" for rank in range(11))]
    assert [node.parent for node in tree.nodes.values()][:3] == [None, "root", HOST_NODE]
    root = properties(tree, "root")["Root"]
    assert (root["num_hosts"], root["started_by"], root["pid"]) == (1, "somebody", 100)
    assert root["started_at"] == "2026-11-22T18:37:29.500Z"


def test_every_field_of_an_actor_is_there() -> None:
    tree = trees.tree(trees.process("client", [trees.busy("w", 1.5, waits="db.get")]))
    actor = properties(tree, trees.actor("w").id)["Actor"]
    assert actor["actor_status"] == "step: processing for 1500ms"
    assert (actor["status"], actor["status_detail"], actor["stuck_ms"]) == ("processing", "step for 1500ms", 1500)
    assert (actor["messages_processed"], actor["total_processing_time_us"]) == (3, 250_000)
    assert actor["last_message_handler"] == "step"
    assert actor["execution"]["active_handlers"] == [
        {"name": "step", "active_count": 1, "oldest_since": "2026-11-22T18:38:58.000Z", "at": "/p/t.py:3"}
    ]
    assert [wait["target"] for wait in actor["waits_for"]] == ["db.get"]
    assert actor["flight_recorder"] is None and actor["failure_info"] is None and actor["inbound_ordering"] is None


def test_children_say_which_are_of_the_system_and_which_have_stopped() -> None:
    gone = trees.actor("gone", status="stopped", detail="done", ended=NOW - 1)
    tree = trees.tree(trees.process("client", [trees.actor("w"), trees.actor("log", system=True)], [gone]))
    proc = properties(tree, CLIENT)["Proc"]
    assert proc["num_actors"] == 2
    assert proc["system_children"] == [trees.actor("log").id]
    assert proc["stopped_children"] == [gone.id]
    assert tree.nodes[CLIENT].children == [trees.actor("log").id, trees.actor("w").id, gone.id]
    assert properties(tree, gone.id)["Actor"]["actor_status"] == "stopped: done"


def test_an_actor_has_those_whom_it_supervises_as_children_and_its_process_as_parent() -> None:
    child = trees.actor("child", 0, "mesh-0<uid>", owner="boss.0", owner_proc=f"{HOST}/client")
    tree = trees.tree(trees.process("client", [trees.actor("boss")]), trees.process("uid.0", [child]))
    assert tree.nodes[trees.actor("boss").id].children == [child.id]
    assert tree.nodes[child.id].parent == FIRST


def test_a_dead_rank_is_an_error_that_says_how_it_ended() -> None:
    dead = trees.ended("uid.1", -9, tail=["out of memory"])
    tree = trees.tree(trees.agent(["uid.0"], [dead]), trees.process("uid.0"))
    error = properties(tree, SECOND)["Error"]
    assert error["code"] == "process_ended"
    assert "pid 77" in error["message"] and "signal 9" in error["message"] and "out of memory" in error["message"]
    assert properties(tree, "root")["Root"]["failed_count"] == 1


def test_a_process_that_was_stopped_or_replaced_is_no_dead_rank() -> None:
    tree = trees.tree(
        trees.agent(["uid.0"], [trees.ended("uid.0"), trees.ended("uid.1", 0, stopped=True)]), trees.process("uid.0")
    )
    assert properties(tree, FIRST).keys() == {"Proc"}
    assert SECOND not in tree.nodes


def test_a_process_that_does_not_answer_is_an_error_and_the_root_names_it() -> None:
    silent = {f"{HOST}/uid.0": "did not answer within 3 s"}
    tree = trees.tree(trees.agent(["uid.0"], state="stopped", why="stopped by signal SIGSTOP"), silent=silent)
    error = properties(tree, FIRST)["Error"]
    assert error["code"] == "gateway_timeout"
    assert "stopped by signal SIGSTOP" in error["message"]
    assert properties(tree, "root")["Root"]["silent"] == silent


def test_a_host_whose_agent_is_silent_stays_with_its_processes() -> None:
    tree = trees.tree(trees.process("uid.0"), silent={f"{HOST}/agent": "did not answer"})
    host = properties(tree, HOST_NODE)["Host"]
    assert (host["problem"], host["num_procs"]) == ("did not answer", 1)
    assert host["memory"] == {"process_rss_bytes": None, "process_vm_size_bytes": None}


def test_a_process_that_starts() -> None:
    tree = trees.tree(trees.agent(["uid.0"], state="starting"))
    assert properties(tree, FIRST)["Error"]["code"] == "starting"


def test_a_program_of_which_nobody_answers_is_a_root() -> None:
    tree = trees.tree()
    assert list(tree.nodes) == ["root"]


# --- root causes


def test_a_failure_of_its_own() -> None:
    tree = trees.tree(trees.process("client", [], [trees.failed("w", "ValueError: x")]))
    failure = properties(tree, trees.actor("w").id)["Actor"]["failure_info"]
    assert failure["root_cause_actor"] == trees.actor("w").id
    assert failure["is_propagated"] is False
    assert failure["error_message"] == "ValueError: x"


def test_the_root_cause_is_followed_through_failures_that_came_of_it() -> None:
    first = trees.failed("first", "it", proc="mesh-0<uid>")
    second = trees.failed("second", "because", ("first", 0, f"{HOST}/uid.0", "first"), proc="mesh-1<uid>")
    third = trees.failed("third", "because", ("second", 0, f"{HOST}/uid.1", "second"))
    tree = trees.tree(
        trees.process("uid.0", [], [first]), trees.process("uid.1", [], [second]), trees.process("client", [], [third])
    )
    failure = properties(tree, third.id)["Actor"]["failure_info"]
    assert (failure["root_cause_actor"], failure["root_cause_name"]) == (first.id, "first[0]")
    assert failure["is_propagated"] is True


def test_a_root_cause_that_ended_with_its_process_is_that_process() -> None:
    owner = trees.failed("owner", "because", ("w", 1, f"{HOST}/uid.1", "w"))
    tree = trees.tree(trees.agent([], [trees.ended("uid.1")]), trees.process("client", [], [owner]))
    failure = properties(tree, owner.id)["Actor"]["failure_info"]
    assert (failure["root_cause_actor"], failure["root_cause_name"]) == (SECOND, "w[1]")
    assert SECOND in tree.nodes


def test_a_circle_of_causes_ends() -> None:
    one = trees.failed("one", "because", ("two", 0, f"{HOST}/client", "two"))
    two = trees.failed("two", "because", ("one", 0, f"{HOST}/client", "one"))
    tree = trees.tree(trees.process("client", [], [one, two]))
    assert properties(tree, one.id)["Actor"]["failure_info"]["is_propagated"] is True


# --- texts


@pytest.mark.parametrize(
    ("status", "detail", "text"),
    [
        ("idle", "", "idle"),
        ("processing", "add for 12ms", "add: processing for 12ms"),
        ("stopped", "its owner ended", "stopped: its owner ended"),
        ("zombie", "abandoned", "zombie: abandoned"),
    ],
)
def test_status_in_one_text(status: str, detail: str, text: str) -> None:
    assert status_text(status, detail) == text


def test_the_page_has_a_url_on_each_line() -> None:
    dead = trees.agent(["uid.0"], [trees.ended("uid.1")])
    tree = trees.tree(dead, trees.process("client"), trees.process("uid.0", [trees.actor("w", 0, "mesh-0<uid>")]))
    lines = page(tree, "http://here:1").splitlines()
    assert [line.partition("  ->  ")[0] for line in lines] == [
        HOST,
        "├── client",
        "├── mesh-0<uid>",
        "│   └── w[w<w0>]",
        "└── mesh-1<uid>  [error] process_ended",
    ]
    assert all(line.partition("  ->  ")[2].startswith("http://here:1/v1/") for line in lines)


def test_what_a_node_is() -> None:
    tree = trees.tree(trees.process("client", [trees.actor("w")]))
    kinds = [node.kind for node in tree.nodes.values()]
    assert kinds == ["Root", "Host", "Proc", "Actor"]
    assert isinstance(tree.nodes["root"], NodePayload)
