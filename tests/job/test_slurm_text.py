"""Tests of what Slurm prints, in the shapes that its versions have given it."""

from __future__ import annotations

from typing import Any

import pytest

from monarch.job.slurm import text as slurm_text
from monarch.job.slurm.text import JobRow


def test_the_id_that_sbatch_printed() -> None:
    assert slurm_text.job_id("Submitted batch job 4711\n") == "4711"
    assert slurm_text.job_id("sbatch: welcome\nSubmitted batch job 12 on cluster tiger\n") == "12"
    assert slurm_text.job_id("sbatch: error: invalid partition specified: nope\n") is None


def test_a_job_in_the_queue() -> None:
    [row] = slurm_text.rows("3|PENDING|PartitionNodeLimit|N/A|\n")
    assert row == JobRow(0, "PENDING", "PartitionNodeLimit", "N/A", "")
    assert not row.running and not row.over and not row.gone
    assert row.why() == (
        "PENDING, reason PartitionNodeLimit: the partition has fewer nodes, or lets a job have fewer: "
        "it will not start as it is"
    )


def test_a_reason_with_spaces_and_commas_stays_one_field() -> None:
    [row] = slurm_text.rows("3|PENDING|ReqNodeNotAvail, UnavailableNodes:n[1-2]|2026-11-22T15:11:22|\n")
    assert row.reason == "ReqNodeNotAvail, UnavailableNodes:n[1-2]"
    assert row.why().endswith("(start expected at 2026-11-22T15:11:22)")


def test_components_of_a_heterogeneous_job_come_in_order() -> None:
    rows = slurm_text.rows("1+1|RUNNING|None|N/A|n[3-4]\n1+0|RUNNING|None|N/A|n1\n")
    assert [(row.part, row.nodes) for row in rows] == [(0, "n1"), (1, "n[3-4]")]
    assert all(row.running for row in rows)


@pytest.mark.parametrize(
    "state", ["CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "FAILED", "COMPLETED", "OUT_OF_MEMORY"]
)
def test_what_has_ended_says_how(state: str) -> None:
    [row] = slurm_text.rows(f"5|{state}|None|N/A|n1\n")
    assert row.over and row.gone and not row.running
    assert row.why().startswith(f"{state}: ")


def test_a_job_that_is_ending_is_over_and_not_gone() -> None:
    [row] = slurm_text.rows("5|COMPLETING|None|N/A|n1\n")
    assert row.over and not row.gone


@pytest.mark.parametrize("state", ["CONFIGURING", "SUSPENDED", "REQUEUED", "STAGE_OUT"])
def test_other_states_are_waited_for(state: str) -> None:
    [row] = slurm_text.rows(f"5|{state}|None|N/A|(null)\n")
    assert not row.running and not row.over and row.nodes == ""


def test_what_is_not_squeues_own_output_is_refused() -> None:
    with pytest.raises(ValueError, match="five fields"):
        slurm_text.rows("RUNNING n1\n")
    assert slurm_text.rows("\n") == []


SHAPES: dict[str, Any] = {
    "22.05": {
        "job_id": 7,
        "job_state": "RUNNING",
        "state_reason": "None",
        "job_resources": {"allocated_nodes": [{"nodename": "n1"}, {"nodename": "n2"}]},
    },
    "23.11": {
        "job_id": 7,
        "job_state": ["RUNNING"],
        "state_reason": "None",
        "job_resources": {"nodes": {"list": "n[1-2]", "allocation": [{"name": "n1"}, {"name": "n2"}]}},
    },
    "nodes as a text": {"job_id": 7, "job_state": ["RUNNING"], "job_resources": {"nodes": "n[1-2]"}},
    "only a list of names": {"job_id": 7, "job_state": "RUNNING", "job_resources": {"nodes": {"list": "n1,n2"}}},
    "nodes as strings": {"job_id": 7, "job_state": "RUNNING", "nodes": ["n1", "n2"]},
    "allocated by number": {
        "job_id": {"set": True, "number": 7},
        "job_state": "RUNNING",
        "job_resources": {"allocated_nodes": {"0": {"nodename": "n1"}, "1": {"nodename": "n2"}}},
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_json_of_every_version(shape: str) -> None:
    """22.05 lists all jobs, whichever was asked for."""
    [row] = slurm_text.rows_from_json({"jobs": [{"job_id": 6, "job_state": "PENDING"}, SHAPES[shape]]}, "7")
    assert row.running
    assert slurm_text.split_host_list(row.nodes) == ["n1", "n2"]


def test_json_without_the_job() -> None:
    assert slurm_text.rows_from_json({"jobs": []}, "7") == []
    assert slurm_text.rows_from_json([], "7") == []
    [row] = slurm_text.rows_from_json({"jobs": [{"job_id": 7, "job_state": [], "job_resources": None}]}, "7")
    assert (row.state, row.nodes) == ("", "")


def test_json_of_a_heterogeneous_job() -> None:
    jobs = [
        {
            "job_id": 8,
            "het_job_id": {"set": True, "number": 7},
            "het_job_offset": {"set": True, "number": 1},
            "job_state": "X",
        },
        {"job_id": 7, "het_job_id": 7, "het_job_offset": 0, "job_state": "Y"},
    ]
    assert [row.state for row in slurm_text.rows_from_json({"jobs": jobs}, "7")] == ["Y", "X"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("n[1,3-4],login", ["n1", "n3", "n4", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("gpu[1-2]-ib,x", ["gpu1-ib", "gpu2-ib", "x"]),
        ("", []),
    ],
)
def test_lists_of_hosts(text: str, names: list[str]) -> None:
    assert slurm_text.split_host_list(text) == names
