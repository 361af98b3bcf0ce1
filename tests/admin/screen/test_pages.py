"""Tests of what is said of nodes, in the details, the overlays and without a screen. Pure."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from monarch.admin.payloads import NodePayload
from monarch.admin.pyspy import result
from monarch.admin.screen import details, diagnostics, glossary, labels, once, pages
from monarch.admin.screen.diagnostics import CheckReport
from monarch.admin.screen.sources import SocketSource
from monarch.admin.screen.words import LANGUAGES, Words
from tests.support import trees
from tests.support.trees import HOST, NOW, FakeProgram

SAY = Words()


def lines(nodes: list[NodePayload], reference: str, say: Words = SAY) -> dict[str, str]:
    """label -> value, of the first section and those that have labels."""
    known = {node.identity: node for node in nodes}
    found = details.sections(known, known[reference], NOW, say)
    return {line.label: line.value for section in found for line in section.lines if line.label}


def text(nodes: list[NodePayload], reference: str) -> str:
    known = {node.identity: node for node in nodes}
    found = details.sections(known, known[reference], NOW, SAY)
    return "\n".join(part for section in found for part in (section.title, *(line.value for line in section.lines)))


def test_details_of_every_kind() -> None:
    stuck = trees.busy("w", 75.0, waits="db.get")
    nodes = list(trees.tree(trees.agent([], [trees.ended("uid.1")]), trees.process("client", [stuck])).nodes.values())
    assert lines(nodes, "root")["Uptime"] == "1m30s"
    assert lines(nodes, f"host:agent.agent@{HOST}")["Memory"] == "2.0 GiB of 8.0 GiB"
    assert lines(nodes, f"client@{HOST}")["Last busy"] == "now, 1m15s"
    idle = list(trees.tree(trees.process("client", [trees.actor("w")])).nodes.values())
    assert lines(idle, f"client@{HOST}")["Last busy"] == "2 s ago"
    actor = lines(nodes, stuck.id)
    assert actor["Status"] == "processing: step for 75000ms"
    assert actor["Processing time"] == "0.250 s"
    assert "db.get  1m15s" in text(nodes, stuck.id) and "step ×1  1m15s" in text(nodes, stuck.id)  # noqa: RUF001
    assert lines(nodes, f"mesh-1<uid>@{HOST}")["Code"] == "process_ended"


def test_details_of_a_failure_lead_to_its_cause() -> None:
    owner = trees.failed("owner", "first line\nsecond line", ("w", 1, f"{HOST}/uid.1", "w"))
    nodes = list(trees.tree(trees.process("client", [], [owner])).nodes.values())
    assert lines(nodes, owner.id)["Root cause"] == "w[1]  (Enter)"
    assert "first line\nsecond line" in text(nodes, owner.id)


def test_a_process_with_many_actors_names_the_first() -> None:
    nodes = list(trees.tree(trees.process("client", [trees.actor(f"w{n}") for n in range(80)])).nodes.values())
    assert "... and 30 more" in text(nodes, f"client@{HOST}")


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [(None, []), ("no json", ["no json"]), ('[{"a": 1}]', ['[{"a": 1}]'])],
)
def test_a_flight_recorder_of_another_version_is_shown_as_it_is(recorded: str | None, shown: list[str]) -> None:
    assert [line.value for line in details.events(recorded)] == shown


def test_labels() -> None:
    poisoned = trees.process("client", poisoned="the bootstrap function of its proc mesh raised")
    full = trees.process(
        "uid.0", [], [trees.actor(f"w{n}", status="stopped", ended=NOW) for n in range(2)], retention=2
    )
    nodes = trees.tree(trees.agent(["uid.0"]), poisoned, full).nodes
    assert "[POISONED: 0 failed]" in labels.label(nodes[f"client@{HOST}"])
    assert labels.label(nodes[f"mesh-0<uid>@{HOST}"]) == "mesh-0<uid>  (0 actors: 0 user, 2 stopped (max retained))"


def test_the_whole_tree_without_a_terminal() -> None:
    dead = trees.agent(["uid.0"], [trees.ended("uid.1")])
    told = trees.process("client", [trees.busy("w", 12.0)], [trees.failed("x", "ValueError: no")])
    nodes = list(trees.tree(dead, told, trees.process("uid.0")).nodes.values())
    assert once.page(nodes).splitlines() == [
        "one  (2 procs)",
        "├─ client  (1 actor: 1 user, 1 stopped)  [1 failed]  12.0s",
        "│  ├─ w[0]                                           step 12.0s",
        "│  └─ x[0]                                           failed",
        "├─ mesh-0<uid>  (0 actors: 0 user)",
        "└─ mesh-1<uid>  [error] process_ended: the process (pid 77) has ended, killed by signal 9",
        "",
        "x[0] failed:",
        "  ValueError: no",
    ]


# --- overlays


def test_the_page_of_stacks() -> None:
    shown = pages.stacks(result(trees.stacks(), ["a warning"]), "12:00:00")
    assert [line.text for line in shown] == [
        "pid 100  by monarch  python_only  12:00:00",
        "a warning",
        "",
        "monarch-actor-driver (trainer[3] step)  4711",
        "  load  /p/data.py:31",
        "      n = 3",
        "  Trainer.step  /p/train.py:12",
    ]
    assert pages.stacks({"BinaryNotFound": {"searched": ["PATH"]}}, "")[0].tone == "error"


def test_the_page_of_settings_marks_changed_ones_and_fits() -> None:
    program = FakeProgram(trees.process("client"))
    program.bodies["config"] = trees.settings()
    entries = SocketSource(program).config(f"client@{HOST}")
    for width in (60, 80, 200):
        shown = pages.config(entries, width)
        assert all(len(line.text) <= width for line in shown)
        assert [line.text[0] for line in shown] == ["*", " "]
    assert "HYPERACTOR_CLEANUP_TIMEOUT" in pages.config(entries, 200)[0].text


def test_words_and_glossary_in_each_language() -> None:
    for language in LANGUAGES:
        say = Words(language)
        assert say("Connecting to {0} ...", "x").count("x") == 1
        assert len(glossary.entries(language)) == len(glossary.entries())
        assert pages.help_page(language)
    with pytest.raises(ValueError, match="not 'fr'"):
        Words("fr")


# --- diagnostics


def diagnosed(program: FakeProgram, step: float = 0.0) -> CheckReport:
    times = itertools.count()
    return diagnostics.run(SocketSource(program, apart=0), lambda: next(times) * step)


def test_a_healthy_program() -> None:
    report = diagnosed(
        FakeProgram(trees.agent(["uid.0"]), trees.process("client", [trees.actor("w")]), trees.process("uid.0"))
    )
    assert report.healthy and report.passed() == report.total() == 5
    made = report.json()
    assert made["summary"]["admin_infra_total"] == 3 and made["summary"]["mesh_total"] == 2
    assert made["checks"][0]["outcome"] == {"Pass": {"elapsed_ms": 0}}
    assert pages.diagnostics(report, True, SAY)[0] == "Diagnostics: all passed (5)"


def test_a_dead_rank_and_a_failed_actor_fail() -> None:
    told = trees.process("client", [], [trees.failed("w", "ValueError: x")])
    report = diagnosed(FakeProgram(trees.agent([], [trees.ended("uid.1")]), told))
    assert not report.healthy
    wrong = {check.label: check.error for check in report.checks if check.error}
    assert set(wrong) == {"w[0]", "mesh-1<uid>"}
    title, shown = pages.diagnostics(report, True, SAY)
    assert title == "Diagnostics: AdminInfra healthy, Mesh failing (2 / 2)"
    assert any("signal 9" in line.text for line in shown)


def test_slow_answers_are_said_and_time_is_bounded() -> None:
    program = FakeProgram(trees.agent(), trees.process("client", [trees.actor("w")]))
    assert {check.word for check in diagnosed(program, 1.0).checks} == {"Slow"}
    report = diagnosed(program, 100.0)
    assert report.timed_out and not report.healthy


def test_a_program_that_is_gone() -> None:
    program = FakeProgram()
    program.gone = True
    report = diagnosed(program)
    assert [check.error for check in report.checks] == ["the program (pid 100) has ended"]
    assert msgspec.json.encode(report.json())
