"""Names of workers in front of their addresses."""

from __future__ import annotations

import pytest

from monarch import job


def test_names_are_written_and_read() -> None:
    ids = [job.new_service_proc_id() for _ in range(3)]
    assert len(set(ids)) == 3 and all(one.startswith("service") for one in ids)
    assert job.deserialize_service_proc_ids(job.serialize_service_proc_ids(ids)) == ids
    assert job.service_proc_addrs(["tcp://a:1", "tcp://b:1"], ids[:2]) == [f"{ids[0]}@tcp://a:1", f"{ids[1]}@tcp://b:1"]
    assert job.service_proc_addr("tcp://a:1") == "tcp://a:1"
    with pytest.raises(ValueError, match="got 1 worker addresses and 3 service ProcIds"):
        job.service_proc_addrs(["tcp://a:1"], ids)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '["a@b"]', '[""]'], ids=["empty", "table", "number", "at", "blank"])
def test_text_that_is_no_list_of_names(text: str) -> None:
    with pytest.raises(ValueError, match="MONARCH_SERVICE_PROC_IDS is a JSON list of names"):
        job.deserialize_service_proc_ids(text)


def test_a_worker_takes_the_name_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert job.ranked_service_proc_id_from_env() is None
    monkeypatch.setenv(job.SERVICE_PROC_IDS_ENV, '["a", "b"]')
    assert job.ranked_service_proc_id_from_env() is None
    monkeypatch.setenv("SLURM_NODEID", "1")
    assert job.ranked_service_proc_id_from_env(rank_env="SLURM_NODEID") == "b"
    monkeypatch.setenv(job.SERVICE_PROC_RANK_ENV, "2")
    with pytest.raises(ValueError, match="MONARCH_SERVICE_PROC_RANK=2 names none of the 2 workers"):
        job.ranked_service_proc_id_from_env()


def test_a_worker_is_reached_with_a_name_and_without() -> None:
    from monarch._wire import host_address

    assert host_address.parse_dial("service1@tcp://a:1") == host_address.parse_dial("tcp://a:1")
