"""The page of `monarch status`, of a program and of the hosts of a job."""

from __future__ import annotations

from monarch._mesh.failures.activity import RunningHandler
from monarch._mesh.inspection.host_usage import HostUsage, ProcessUsage
from monarch._mesh.inspection.small_answers import FailureNote
from monarch._mesh.inspection.status_tables import decode
from monarch._mesh.inspection.wait_graph import WaitGraph
from monarch.admin.programs import Program
from monarch.admin.status import StatusReport, page
from tests.support import trees
from tests.support.hostile import NAME, fit

HOSTS = [
    HostUsage("h2", "n2", 3, 8 << 30, 8 << 30, 0.0, []),
    HostUsage(
        "h1",
        "n1",
        2,
        8 << 30,
        6 << 30,
        0.25,
        [
            ProcessUsage("h1/w.1", 13, "work", 1, "stopped", "by SIGSTOP", resident=1 << 20),
            ProcessUsage("h1/w.0", 12, "work", 0, "running", "", resident=300 << 20, processor=61.2),
        ],
    ),
]
SILENT = {"h1/w.1": "did not answer within 2 s"}
LINES = [
    "n1  2 processes, memory 2.0 GiB of 8.0 GiB used, load 0.2",
    "    work 0  pid 12  running  300 MiB  61 s of processor time",
    "    work 1  pid 13  STOPPED (by SIGSTOP)  1 MiB  0 s of processor time",
]


def waits() -> WaitGraph:
    return WaitGraph([], [], SILENT)


def test_the_hosts_of_a_job_in_its_order() -> None:
    status = StatusReport(
        None,
        HOSTS,
        {"h3/agent": "it is gone"},
        waits(),
        [],
        "job x: SlurmJob",
        {"h1": "t[0]", "h2": "t[1]", "h3": "t[2]"},
    )
    assert page(status).splitlines() == [
        "job x: SlurmJob, 3 hosts, 2 processes",
        f"t[0]  {LINES[0]}",
        *LINES[1:],
        "t[1]  n2  0 processes, memory 0 B of 8.0 GiB used, load 0.0",
        "t[2]  DOES NOT ANSWER: it is gone",
        "processes that did not answer: 1  (`monarch stacks` says where they are)",
        "    rank 1 of work: did not answer within 2 s",
    ]


def test_a_program() -> None:
    status = StatusReport(Program("/f", 7, 100.0, "python a.py"), HOSTS[1:], {}, waits(), [])
    assert page(status, 161.0).splitlines()[:4] == ["7: python a.py, for 1 min 1 s, 1 host, 2 processes", *LINES]


def test_services_have_a_table() -> None:
    tables = decode(trees.tables())
    assert page(
        StatusReport(Program("/f", 7, 100.0, "a.py"), [], {}, WaitGraph([], [], {}), [], tables=tables), 161.0
    ).splitlines()[1:] == [
        "service 'x'",
        "    replica  state",
        "          0     up",
        "          1   lost  killed",
    ]


def test_what_a_program_calls_itself_adds_no_line() -> None:
    """Names, reasons and reports are the program's; a line of the page is ours."""
    hosts = [HostUsage("h", NAME, 1, 1, 1, 0.0, [ProcessUsage("h/w.0", 12, NAME, 0, "stopped", NAME, resident=1)])]
    handler = RunningHandler(NAME, 0, NAME, 12, "h/w.0", NAME, 5.0, NAME, 3, NAME)
    graph = WaitGraph([], [handler], {"h/w.1": NAME})
    failures = [FailureNote(NAME, [0], f"{NAME}\nmore")]
    shown = page(StatusReport(Program("/f", 7, 100.0, NAME), hosts, {"h2/agent": NAME}, graph, failures), 100.0)
    assert fit(shown)
    lines = shown.splitlines()
    assert len(lines) == 10, lines
    assert "has failed: 1" in lines
