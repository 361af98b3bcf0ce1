"""Stacks of many ranks on one page."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from monarch._mesh.inspection import folding
from monarch._mesh.inspection.stack_records import HOW_SIGNAL, ProcessStacks, StackFrame, ThreadStack
from monarch._mesh.inspection.stacks_of_program import Stacks
from monarch._text import ranges
from tests.support.hostile import NAME, fit

STEP = [StackFrame("/srv/train.py", 40, "Trainer.train"), StackFrame("/srv/train.py", 88, "Trainer.step")]
LOAD = [StackFrame("/srv/train.py", 40, "Trainer.train"), StackFrame("/srv/data.py", 31, "load")]


def actor(
    rank: int, frames: list[StackFrame], endpoint: str = "train", seconds: float = 7.0, **more: object
) -> ThreadStack:
    return ThreadStack("t", 7, frames, "trainers", "key", rank, endpoint, seconds, **more)  # type: ignore[arg-type]


def process(rank: int, *threads: ThreadStack, how: str = "itself", why: str = "") -> ProcessStacks:
    return ProcessStacks(f"unix:/run/x/uid.{rank}", "node1", 100 + rank, "workers", rank, list(threads), how, why)


def mesh(count: int, odd: int) -> list[ProcessStacks]:
    return [process(rank, actor(rank, LOAD if rank == odd else STEP)) for rank in range(count)]


def test_one_line_says_where_most_ranks_are_and_which_is_not_there() -> None:
    (section,) = folding.fold(mesh(64, 17))
    assert (
        folding.summary(section)
        == "trainers: 63 of 64 ranks at train.py:88 in Trainer.step(), rank 17 at data.py:31 in load()"
    )


def test_a_whole_stack_is_shown_once_for_all_ranks_that_have_it() -> None:
    text = folding.page(mesh(64, 17), {})
    assert text.count('File "/srv/train.py", line 88, in Trainer.step') == 1
    assert "  ranks 0-16, 18-63, in train() for 7.0 s:" in text
    assert "  rank 17, in train() for 7.0 s:" in text


def test_what_is_silent_is_named_by_its_mesh() -> None:
    text = str(Stacks(mesh(3, 0), {"unix:/run/x/uid.3": "it is stopped", "unix:/run/x/client": "gone"}))
    assert "no stacks of 2 processes:\n  rank 3 of workers: it is stopped\n  the program: gone" in text


def test_actors_that_do_nothing_are_idle() -> None:
    text = folding.page([process(rank, actor(rank, [], "", idle=True)) for rank in range(3)], {})
    assert text == "trainers: 3 of 3 ranks idle\n  ranks 0-2: idle"


def test_a_suspended_task_says_where_it_awaits() -> None:
    (section,) = folding.fold([process(0, actor(0, STEP, task="Task-1"))])
    assert folding.summary(section) == "trainers: awaiting at train.py:88 in Trainer.step()"


def test_the_line_of_the_program_counts_and_what_it_has_called_there() -> None:
    torch = [StackFrame("/usr/lib/python3/site-packages/torch/distributed/c10d.py", 3252, "all_reduce")]
    assert folding.where(actor(0, STEP + torch)) == "at train.py:88 in Trainer.step(), in all_reduce()"
    native = [StackFrame("/usr/lib/libc.so.6", 0, "nanosleep")]
    assert folding.where(actor(0, STEP + native)) == "at train.py:88 in Trainer.step()"
    assert folding.where(actor(0, torch)) == "at c10d.py:3252 in all_reduce()"
    assert folding.where(actor(0, [])) == "in train(), outside of the program's own lines"


def test_a_dump_by_signal_is_folded_with_what_the_others_told() -> None:
    """It has neither names of actors nor qualified names of functions."""
    plain = [StackFrame(frame.file, frame.line, frame.function.rpartition(".")[2]) for frame in STEP]
    told = ThreadStack("thread 0x1", 0, plain, "an actor", endpoint="train")
    idle = ThreadStack("thread 0x2", 0, [], "an actor", idle=True)
    other = ThreadStack("u", 9, [], "others", "key2", 0, idle=True)
    first, second = process(0, actor(0, STEP), other), process(1, told, idle, how=HOW_SIGNAL, why="silent for 2 s")
    unknown = ProcessStacks(second.address, "node1", 101, "", 1, second.threads, HOW_SIGNAL, "silent for 2 s")
    found = folding.completed([first, unknown])
    assert found[1].mesh == "workers"
    section = folding.fold(found)[0]
    assert folding.summary(section) == "trainers: 2 of 2 ranks at train.py:88 in Trainer.step()"
    assert "by a signal, because it told nothing itself: rank 1 of workers (pid 101, host node1)" in folding.page(
        found, {}
    )


def test_without_others_of_its_mesh_a_dump_stays_what_it_is() -> None:
    told = ThreadStack("thread 0x1", 0, STEP, "an actor", endpoint="train")
    (found,) = folding.completed([ProcessStacks("unix:/run/x/uid.1", "n", 1, "", 1, [told], HOW_SIGNAL)])
    assert found.threads == [told]


def test_many_groups_are_cut() -> None:
    processes = [process(rank, actor(rank, [StackFrame("/a.py", rank, "f")])) for rank in range(100)]
    text = folding.page(processes, {})
    assert "(70 more groups of ranks are left out)" in text
    assert "and 96 more places" in text


def test_variables_are_those_of_the_first_rank_and_it_says_so() -> None:
    frames = [StackFrame("/a.py", 1, "f", {"x": "1"})]
    text = folding.page([process(rank, actor(rank, frames)) for rank in range(2)], {})
    assert "          x = 1\n" in text
    assert "the variables are those of rank 0" in text


def test_nothing_at_all() -> None:
    assert folding.page([], {}) == "no thread is in a line of the program"


def test_ranks_of_an_actor_and_of_a_process() -> None:
    free = ThreadStack("loader", 3, LOAD)
    stacks = Stacks([process(1, actor(5, STEP), free)], {})
    assert {rank: [stack.thread for stack in found] for rank, found in stacks.ranks.items()} == {
        1: ["loader"],
        5: ["t"],
    }


@given(st.sets(st.integers(0, 200)))
def test_ranges_say_every_rank_once(ranks: set[int]) -> None:
    said: list[int] = []
    for part in filter(None, ranges(ranks).split(", ")):
        first, _, last = part.partition("-")
        said += range(int(first), int(last or first) + 1)
    assert said == sorted(ranks)


def test_ranges_that_are_too_many_are_counted() -> None:
    assert ranges([0, 2, 4, 5], most=2) == "0, 2 and 2 more"
    assert folding.called([3]) == "rank 3"
    assert folding.called([3, 4, 5]) == "ranks 3-5"


def test_names_of_the_program_add_no_line() -> None:
    def shown(name: str) -> str:
        frames = [StackFrame(f"/{name}.py", 3, name, {name: name})]
        threads = [
            ThreadStack(name, 7, frames, name, "key", 0, name, 5.0, name),
            ThreadStack(name, 8, frames, task=name),
        ]
        process = ProcessStacks("unix:/run/x/uid.0", name, 100, name, 0, threads, HOW_SIGNAL, name)
        return folding.page([process], {"unix:/run/x/uid.1": name, "unix:/run/x/uid.2": f"{folding.NO_NATIVE} {name}"})

    assert fit(shown(NAME))
    assert len(shown(NAME).splitlines()) == len(shown("name").splitlines())
