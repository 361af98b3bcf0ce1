"""Tests of what ssh has said, as a sentence."""

from __future__ import annotations

import pytest

from monarch.job.ssh import job as ssh_job


def told(status: int, said: str) -> str:
    return ssh_job.ssh_failure("node1", status, said, "python3", 22222)


@pytest.mark.parametrize(
    ("status", "said", "parts"),
    [
        (
            255,
            "ssh: connect to host node1 port 22: Connection refused\n",
            ["could not get there", "that sshd runs there"],
        ),
        (255, "ssh: connect to host node1 port 22: Connection timed out", ["It does not answer"]),
        (255, "ssh: Could not resolve hostname node1: Name or service not known", ["~/.ssh/config"]),
        (255, "me@node1: Permission denied (publickey).", ["`ssh node1 true` works without a question"]),
        (255, "Host key verification failed.", ["The host's key is not the one that is known"]),
        (127, "bash: line 1: exec: python3: not found", ["python3 could not be run there", "Give python_exe the path"]),
        (1, "/usr/bin/python3: No module named monarch", ["status 1", "install pymonarch"]),
        (
            1,
            "monarch worker: cannot listen at tcp://node1:22222: Address already in use",
            ["Port 22222 is taken there"],
        ),
        (1, "monarch worker: [Errno 99] Cannot assign requested address", ["bind_to='0.0.0.0'"]),
        (-9, "", ["ssh was killed by signal 9", "it said nothing"]),
        (3, "something else", ["the worker ended with status 3: something else"]),
    ],
)
def test_a_failure_names_the_host_with_the_words_and_the_way_out(status: int, said: str, parts: list[str]) -> None:
    text = told(status, said)
    assert text.startswith("host node1: ")
    assert said.strip().rstrip(".") in text
    for part in parts:
        assert part in text


def test_only_the_first_and_last_lines_are_quoted() -> None:
    text = told(255, "\n".join(f"line {number}" for number in range(50)))
    assert "line 0 / line 1 / ... / line 46 / " in text and text.endswith("line 49") and "line 40" not in text


def test_what_the_configuration_says() -> None:
    shown = "host node1\nhostname 10.0.0.7\nport 22\nconnecttimeout none\n"
    assert ssh_job.host_name(shown) == "10.0.0.7"
    assert not ssh_job.has_connect_timeout(shown)
    assert ssh_job.has_connect_timeout("hostname x\nconnecttimeout 3\n")
    assert ssh_job.host_name("") is None


def test_workers_stay_unless_it_is_said_otherwise() -> None:
    assert ssh_job.SSHJob()._hosts_outlive_program()
    assert not ssh_job.SSHJob(outlive=False)._hosts_outlive_program()
