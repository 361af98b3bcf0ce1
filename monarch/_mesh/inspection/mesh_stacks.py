"""`stacks()` of meshes: asked from inside the program, by the client or an actor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monarch._mesh.inspection import stacks_of_program, survey
from monarch._mesh.inspection.stack_records import ProcessStacks, ThreadStack
from monarch._mesh.inspection.stacks_of_program import Stacks, StacksQuery
from monarch._mesh.inspection.survey_answers import SurveyAnswers
from monarch._runtime.future import Future, check_timeout
from monarch._runtime.promise import in_thread
from monarch._wire.address import host_of

_GRACE = 5.0  # seconds that a survey may be late


def ask_program(
    question: str,
    argument: bytes,
    *,
    timeout: float,
    only: Sequence[str] | None,
    agents: bool,
    attached: Sequence[str] = (),
) -> SurveyAnswers:
    """Returns the answers of `survey.ask`, which it waits for."""
    answers = survey.ask(question, argument, timeout=timeout, only=only, agents=agents, attached=attached)
    return answers.get(timeout + _GRACE)


def stacks_of(
    only: Sequence[str] | None,
    keep: Callable[[ProcessStacks, ThreadStack], bool] | None,
    timeout: float,
    variables: bool,
    native: bool,
    all_threads: bool,
) -> Future[Stacks]:
    """Collects the stacks of the processes at these addresses (None: all), of them the threads for which `keep`."""
    survey.open_proc()  # raises here, where the call is
    addresses = None if only is None else list(dict.fromkeys(only))
    wanted = StacksQuery(addresses, check_timeout(timeout), all_threads, variables, native)

    def make() -> Stacks:
        found = stacks_of_program.gather(ask_program, wanted)
        return found if keep is None else found.only(keep)

    return in_thread(make, "monarch-stacks", "the stacks of this program")


def of_actors(
    addresses: Sequence[str], key: str, timeout: float, variables: bool, native: bool, all_threads: bool
) -> Future[Stacks]:
    """Collects the stacks of an actor mesh: the threads of its actors, and of processes that could not say whose they
    are, all actors'."""

    def keep(process: ProcessStacks, stack: ThreadStack) -> bool:
        return all_threads or stack.key == key or bool(stack.actor and not stack.key) or not process.mesh

    return stacks_of(addresses, keep, timeout, variables, native, all_threads)


def of_hosts(hosts: Sequence[str], timeout: float, variables: bool, native: bool, all_threads: bool) -> Future[Stacks]:
    """Collects the stacks of every process of this program on these hosts."""
    there = set(hosts)

    def keep(process: ProcessStacks, stack: ThreadStack) -> bool:
        return host_of(process.address) in there

    return stacks_of(None, keep, timeout, variables, native, all_threads)
