"""A cause that several ranks tell is reported in full once."""

from __future__ import annotations

from monarch._mesh.failures.ledger import MeshFailure, actor_failure
from monarch._mesh.failures.main_thread import Repeats


def failure(rank: int, cause: str = "__init__ raised:\nValueError: x", mesh: str = "m-1") -> MeshFailure:
    return MeshFailure(actor_failure(f"<root>.<M m{rank}>", cause, "key", mesh, rank))


def test_the_same_cause_on_another_rank_is_a_line() -> None:
    repeats = Repeats()
    assert repeats.shortened(failure(2), "the report\n") == "the report\n"
    assert repeats.shortened(failure(0), "another\n") == "The same failure on rank(s) 0 of m-1\n"
    assert repeats.shortened(failure(3), "another\n") == "The same failure on rank(s) 3 of m-1\n"


def test_another_cause_or_mesh_is_reported_in_full() -> None:
    repeats = Repeats()
    for told in (failure(0), failure(0, "another cause"), failure(1), failure(2, mesh="m-2"), failure(1)):
        assert repeats.shortened(told, "in full") == "in full"


def test_a_failure_of_no_rank_is_reported_in_full() -> None:
    repeats, whole = Repeats(), failure(0)
    whole.crashed_ranks = []
    assert [repeats.shortened(whole, "in full") for _ in range(2)] == ["in full", "in full"]
