"""`make test` stays quick: real processes take nearly all of its time, and it runs no more of them than tiers.py says."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support import tiers


def too_many(found: Counter[str]) -> str:
    """Returns what to do about it; "" if they are not too many."""
    if found.total() <= tiers.MOST_WITH_PROCESSES:
        return ""
    files = "\n".join(f"{count:5} {file}" for file, count in found.most_common(12))
    return (
        f"`make test` would run {found.total()} cases with real processes, {tiers.MOST_WITH_PROCESSES} are allowed "
        "(tests/support/tiers.py: MOST_WITH_PROCESSES).\nProve the decision in memory (monarch.testing), and mark what is "
        "another case of a way that is run already with `full`, or give its cases to `first_of`. Most are in:\n" + files
    )


def test_so_many_cases_with_real_processes_and_no_more(pytestconfig: pytest.Config) -> None:
    """Counts the cases of what this run has collected: all of them where it runs everything, as `make test` does."""
    report = too_many(pytestconfig.stash[tiers.COUNTED])
    assert report == "", report


def test_one_more_is_told_with_the_files_that_have_most() -> None:
    most = tiers.MOST_WITH_PROCESSES
    assert too_many(Counter({"procs/test_a.py": most - 1, "job/test_b.py": 1})) == ""
    report = too_many(Counter({"procs/test_a.py": most - 1, "job/test_b.py": 2}))
    assert f"{most + 1} cases" in report and f"{most} are allowed" in report
    assert report.index("procs/test_a.py") < report.index("job/test_b.py")


def test_what_starts_processes_is_marked(request: pytest.FixtureRequest) -> None:
    request.node.fixturenames.append("scripts")
    tiers.mark_processes(request.node, "tools")
    assert tiers.counts(request.node)
    request.node.add_marker(tiers.full)
    assert not tiers.counts(request.node)


def test_what_has_hosts_in_memory_is_not_marked(request: pytest.FixtureRequest) -> None:
    request.node.fixturenames.append("hosts")
    tiers.mark_processes(request.node, "testing")
    assert not tiers.counts(request.node)
    tiers.mark_processes(request.node, "procs")
    assert tiers.counts(request.node)
