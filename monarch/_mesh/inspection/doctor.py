"""Collects what a diagnosis needs: asks every process twice, and the host agents."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

import msgspec

from monarch._mesh.inspection import diagnosis, status_tables
from monarch._mesh.inspection.collectives import GroupState, decode_groups
from monarch._mesh.inspection.diagnosis import Diagnosis, Evidence, ProgramSample
from monarch._mesh.inspection.folding import completed
from monarch._mesh.inspection.host_usage import HostUsage, decode_host
from monarch._mesh.inspection.small_answers import FailureNote, decode_failures
from monarch._mesh.inspection.stacks_of_program import AskProgram, Stacks, StacksQuery, gather, ordered
from monarch._mesh.inspection.status_tables import StatusTable
from monarch._mesh.inspection.survey import open_proc
from monarch._mesh.inspection.survey_answers import SurveyAnswers
from monarch._mesh.inspection.wait_graph import Report, WaitGraph, ask_graph, combined
from monarch._runtime.future import Future, check_timeout
from monarch._runtime.promise import in_thread
from monarch._wire.address import AGENT, agent_of, name_of

logger = logging.getLogger("monarch")
APART = 1.0  # seconds between the two looks
FRESH = 10.0  # seconds between two diagnoses of those who look all the time: the screen and the dashboard


def examine(ask: AskProgram, seconds: float = 2.0, apart: float = APART) -> Diagnosis:
    """Blocks. `seconds`: how long processes have to answer each question."""
    return diagnosis.diagnose(collect(ask, seconds, apart))


def collect(ask: AskProgram, seconds: float, apart: float) -> Evidence:
    """Collects the evidence. Processes that do not answer the first question are not waited for again."""
    waits = ask("waits", b"", timeout=seconds, only=None, agents=False)
    awake = list(waits.replies)
    silent = {address: why for address, why in waits.silent.items() if name_of(address) != AGENT}
    first = ProgramSample(gather(ask, StacksQuery(awake, seconds), silent), _groups(ask, seconds, awake))
    time.sleep(apart)
    again = gather(ask, StacksQuery(awake, seconds))
    wedged = [process for process in first.stacks.processes if process.address in silent]
    stacks = Stacks(ordered(completed([*again.processes, *wedged])), {**first.stacks.silent, **again.silent})
    second = ProgramSample(stacks, _groups(ask, seconds, awake))
    hosts, unreachable = usage_of_hosts(ask, [*waits.replies, *waits.silent], seconds)
    failures = failures_of(ask, seconds, awake)
    return Evidence(first, second, apart, wait_graph_of(waits), hosts, unreachable, failures)


def _groups(ask: AskProgram, seconds: float, awake: Sequence[str]) -> dict[str, Sequence[GroupState]]:
    answers = ask("collectives", b"", timeout=seconds, only=awake, agents=False)
    return answers.decoded(decode_groups)


def wait_graph_of(answers: SurveyAnswers) -> WaitGraph:
    """Returns the wait graph of the answers to "waits"."""
    reports = answers.decoded(msgspec.msgpack.Decoder(Report).decode)
    return combined(list(reports.values()), answers.silent)


def usage_of_hosts(ask: AskProgram, addresses: Iterable[str], seconds: float) -> tuple[list[HostUsage], dict[str, str]]:
    """(what the agents say of their hosts, why others do not), of the hosts of these processes and agents."""
    agents = sorted({address if name_of(address) == AGENT else agent_of(address) for address in addresses})
    told = ask("host", b"", timeout=seconds, only=agents, agents=True)
    usages = told.decoded(decode_host)
    return [usages[agent] for agent in agents if agent in usages], dict(told.silent)


def failures_of(ask: AskProgram, seconds: float, awake: Sequence[str] | None = None) -> list[FailureNote]:
    """Returns what has failed of what any process owns."""
    answers = ask("failures", b"", timeout=seconds, only=awake, agents=False)
    return [note for notes in answers.decoded(decode_failures).values() for note in notes]


def tables_of(ask: AskProgram, seconds: float, awake: Sequence[str] | None = None) -> list[StatusTable]:
    """Returns what parts of the processes tell of themselves, by their titles."""
    answers = ask("tables", b"", timeout=seconds, only=awake, agents=False)
    found = [table for tables in answers.decoded(status_tables.decode).values() for table in tables]
    return sorted(found, key=lambda table: table.title)


def diagnose(timeout: float = 2.0) -> Future[Diagnosis]:
    """Looks for what keeps this program from going on: ranks that are not where the others of their mesh are, collectives of
    torch.distributed that not all ranks have entered, processes that are stopped, silent or have failed, actors that wait
    for each other, hosts with little memory left.

    Asks every process twice, a second apart: what moves is at work. Each has `timeout` seconds to answer. Works from the
    client and from any actor, while any number of processes is stuck. `print(diagnose().get())` is a page for people;
    `monarch doctor` shows the same of a program from outside. ValueError for a timeout that is not a finite number of
    seconds, 0 or more.
    """
    from monarch._mesh.inspection import mesh_stacks

    seconds = check_timeout(timeout)
    open_proc()  # raises here, where the call is
    return in_thread(lambda: examine(mesh_stacks.ask_program, seconds), "monarch-doctor", "diagnose()")


def wait_graph(timeout: float = 2.0) -> Future[WaitGraph]:
    """Asks every process of this program who waits for whom there, since when, and at which source line.

    Works from the client and from any actor, `wait_graph().get()` or `await wait_graph()`, and while any number of actors
    is stuck. Processes that have not answered after `timeout` seconds (stopped ones, ones that start) are listed as
    `silent`. Where an endpoint has run for 5 s, or somebody has waited so long, it takes a second more, and has the findings
    of `diagnose()` as well.
    ValueError for a timeout that is not a finite number of seconds, 0 or more.
    """
    seconds = check_timeout(timeout)
    asked, virtual = ask_graph(seconds), open_proc().loop.virtual
    return in_thread(lambda: asked.get() if virtual else _with_findings(asked.get(), seconds), "monarch-waits")


def _with_findings(graph: WaitGraph, seconds: float) -> WaitGraph:
    from monarch._mesh.inspection import mesh_stacks

    return explained(graph, mesh_stacks.ask_program, seconds)


def explained(graph: WaitGraph, ask: AskProgram, seconds: float) -> WaitGraph:
    """Returns the graph with what is wrong, where somebody waits or an endpoint runs for long."""
    lasting = [edge.seconds for edge in graph.edges] + [handler.seconds for handler in graph.handlers]
    return msgspec.structs.replace(graph, findings=titles(ask, seconds, max(lasting, default=0.0)))


def titles(ask: AskProgram, seconds: float, lasting: float) -> list[str]:
    """Returns what is wrong, a line each, beside a look that has shown something that lasts so many seconds. Blocks for over
    a second, but not at all when nothing lasts for long."""
    if lasting < diagnosis.LONG:
        return []
    try:
        return [finding.title for finding in examine(ask, seconds).findings]
    except Exception as exc:  # the program ends, or its client is stuck: what it has told is of use without
        logger.debug("what is wrong could not be found out: %r", exc)
        return []
