"""Queries of a running program, each by one question to its processes: tree, settings, stacks, profiles.

The calls here wait; servers run them on threads. ProgramQueryFailed says in which way it did not work.
"""

from __future__ import annotations

import pwd
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from monarch._mesh import plugins
from monarch._mesh.inspection import doctor, sampler
from monarch._mesh.inspection.description import ProcessFacts, SettingFacts, TreeRequest
from monarch._mesh.inspection.diagnosis import Diagnosis
from monarch._mesh.inspection.status_tables import StatusTable
from monarch._mesh.inspection.survey_answers import SurveyAnswers
from monarch._mesh.output.kept import OutputPage, OutputRequest
from monarch._wire.address import agent_of, name_of, split_proc_name
from monarch.admin import pyspy, references
from monarch.admin.payloads import ConfigEntry, NodePayload
from monarch.admin.program_tree import SILENT, ProgramTree, assemble, flight_recorder
from monarch.admin.programs import ProgramGone
from monarch.admin.references import ROOT, BadReference
from monarch.config import settings

T = TypeVar("T")

_DETAIL = 2.0  # seconds for what one actor tells of itself beside what the tree has
_LINES = 200  # of a process's output
_SLACK = 15.0  # seconds that a profile may take beyond its duration

# How settings came to their values, as the layers have it and as the API calls it.
_SOURCES = {
    "runtime": "Runtime",
    "client": "ClientOverride",
    "environment": "Env",
    "inherited": "ClientOverride",
    "default": "Default",
}


class Queryable(Protocol):
    """A program that can be asked: `programs.Program`, or one that stands for it."""

    pid: int
    command: str

    def ask(
        self,
        question: str,
        argument: bytes = b"",
        *,
        timeout: float = 5.0,
        only: Any = None,
        agents: bool = False,
    ) -> SurveyAnswers: ...


class ProgramQueryFailed(Exception):
    """`code` and `status` as the API answers them."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class ProgramQueries:
    """Questions to one program."""

    def __init__(self, program: Queryable) -> None:
        self.program = program

    def tree(self) -> ProgramTree:
        """All of it, from one survey. Processes that do not answer within the setting mesh_admin_single_host_timeout are in
        it as errors."""
        answers = self._ask("tree", timeout=settings.mesh_admin_single_host_timeout(), agents=True)
        tree = assemble(answers, time.time())
        root = tree.nodes[ROOT].properties.Root
        if root is not None and root.started_by.isdecimal():
            root.started_by = _name_of(int(root.started_by))
        return tree

    def node(self, tree: ProgramTree, reference: str) -> NodePayload:
        """Returns a node; of an actor also the events of its process. ProgramQueryFailed for a process that does not answer;
        one that has ended is a node of kind Error, which says how."""
        found = find(tree, reference)
        error = found.properties.Error
        if error is not None and error.code == SILENT:
            raise ProgramQueryFailed(504, SILENT, error.message)
        key, actor = tree.keys.get(found.identity), found.properties.Actor
        if key is None or actor is None:
            return found
        events = self._events(tree.addresses[found.identity], key)
        if events is None:
            return found
        actor = msgspec.structs.replace(actor, flight_recorder=events)
        return msgspec.structs.replace(found, properties=msgspec.structs.replace(found.properties, Actor=actor))

    def doctor(self, apart: float = doctor.APART) -> Diagnosis:
        """Finds what is wrong with the program, as `monarch.actor.diagnose` does. Takes a little over `apart` seconds."""
        return doctor.examine(self._ask, apart=apart)

    def tables(self) -> list[StatusTable]:
        """Returns what parts of the program tell of themselves, such as its services."""
        return doctor.tables_of(self._ask, settings.mesh_admin_single_host_timeout())

    def output(self, tree: ProgramTree, reference: str) -> list[OutputPage]:
        """Returns the last lines that a process has written, which its host agent keeps; none where there are none."""
        find(tree, reference)
        address = tree.addresses.get(reference, "")
        split = split_proc_name(name_of(address))
        if split is None:
            return []
        wanted = OutputRequest(ranks=[split[1]], lines=_LINES)
        answers = self._ask("output", msgspec.msgpack.encode(wanted), timeout=_DETAIL, only=[agent_of(address)])
        told = answers.decoded(msgspec.msgpack.Decoder(list[OutputPage]).decode)
        return [page for pages in told.values() for page in pages if page.address == address]

    def reach(self, address: str) -> None:
        """Returns when that process or host agent has answered. ProgramQueryFailed when it does not."""
        self._one("tree", address, settings.mesh_admin_single_host_timeout(), bytes)

    def _events(self, address: str, key: str) -> str | None:
        argument = msgspec.msgpack.encode(TreeRequest(key))
        answers = self._ask("tree", argument, timeout=_DETAIL, only=[address])
        facts = answers.decoded(msgspec.msgpack.Decoder(ProcessFacts).decode).get(address)
        if facts is None:
            return None
        actors = [*facts.actors, *reversed(facts.stopped)]
        return flight_recorder(next((actor.events for actor in actors if actor.key == key), []))

    def config(self, tree: ProgramTree, reference: str) -> list[ConfigEntry]:
        """The settings of a process, by name; of an actor those of its process."""
        address = self._process(tree, reference)
        decode = msgspec.msgpack.Decoder(list[SettingFacts]).decode
        rows = self._one("config", address, settings.mesh_admin_config_dump_bridge_timeout(), decode)
        return [
            ConfigEntry(
                row.name,
                row.value,
                row.default,
                _SOURCES.get(row.origin, row.origin),
                row.value != row.default,
                row.variable or None,
                not row.inert,
            )
            for row in rows
        ]

    def stacks(
        self, tree: ProgramTree, reference: str, *, native: bool = False, locals: bool = False, runtime: bool = True
    ) -> dict[str, Any]:
        """The stacks of a process in the shape of py-spy's dump. It tells them itself, without py-spy, unless `native`.
        `runtime`: with the runtime's own frames and threads."""
        address = self._process(tree, reference)
        timeout = settings.mesh_admin_pyspy_timeout()
        warnings = []
        if native:
            answered = self._one_of_agent(
                "native_stacks", address, timeout, lambda body: pyspy.native_result(body, address)
            )
            if "Ok" in answered:
                return answered
            warnings.append(pyspy.why_not_native(answered))
        question, argument = "locals" if locals else "stacks", msgspec.msgpack.encode({"all_threads": runtime})
        return self._one(question, address, timeout, lambda body: pyspy.result(body, warnings), argument)

    def flame(self, tree: ProgramTree, reference: str, wanted: pyspy.ProfileWanted) -> str:
        """A flame graph of a process as SVG."""
        address = self._process(tree, reference)
        argument = msgspec.msgpack.encode(
            {
                "duration_s": wanted.duration_s,
                "rate_hz": wanted.rate_hz,
                "threads": wanted.threads,
                "which": "all" if wanted.threads else "actors",
            }
        )
        samples = self._one("samples", address, wanted.duration_s + _SLACK, sampler.decode, argument).samples
        svg: str = plugins.outer("trace.flame")({reference: samples or {"(nothing ran)": 1}}).svg()
        return svg

    # --- asking

    def _ask(self, question: str, argument: bytes = b"", **options: Any) -> SurveyAnswers:
        try:
            return self.program.ask(question, argument, **options)
        except ProgramGone as exc:
            raise ProgramQueryFailed(503, "service_unavailable", str(exc)) from None
        except TimeoutError as exc:
            raise ProgramQueryFailed(504, "gateway_timeout", str(exc)) from None
        except ValueError as exc:
            raise ProgramQueryFailed(500, "internal_error", str(exc)) from None
        except OSError as exc:
            raise ProgramQueryFailed(503, "service_unavailable", f"the program cannot be asked: {exc}") from None

    def _one(
        self, question: str, address: str, timeout: float, decode: Callable[[bytes], T], argument: bytes = b""
    ) -> T:
        """The answer of one process or agent. ProgramQueryFailed where there is none that can be read."""
        answers = self._ask(question, argument, timeout=timeout, only=[address])
        told = answers.decoded(decode)
        if address in told:
            return told[address]
        why = answers.silent.get(address, "it did not answer")
        if "knows no question" in why:
            raise ProgramQueryFailed(503, "service_unavailable", f"{address}: {why}")
        if "Error: " in why or address in answers.replies:
            raise ProgramQueryFailed(500, "internal_error", f"{address}: {why}")
        raise ProgramQueryFailed(504, "gateway_timeout", f"{address} did not answer: {why}")

    def _one_of_agent(self, question: str, address: str, timeout: float, decode: Callable[[bytes], T]) -> T:
        """The answer of the agent of that process's host, about it."""
        argument = msgspec.msgpack.encode({"addresses": [address], "seconds": timeout})
        return self._one(question, agent_of(address), timeout + 1.0, decode, argument)

    def _process(self, tree: ProgramTree, reference: str) -> str:
        """The address of the process that is meant, or in which that actor is. A process that is gone says how it ended."""
        node = find(tree, reference)
        if node.properties.Root is not None or node.properties.Host is not None:
            raise ProgramQueryFailed(
                400, "bad_request", f"{reference!r} is no process: give the reference of a proc or an actor"
            )
        error = node.properties.Error
        if error is not None and error.code == "process_ended":
            raise ProgramQueryFailed(404, "not_found", error.message)
        return tree.addresses[node.identity]


def _name_of(uid: int) -> str:
    """Returns a user's name where the program did not know it: asked here, because name services may take their time."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def find(tree: ProgramTree, reference: str) -> NodePayload:
    """ProgramQueryFailed for what is no reference, or one of no node."""
    try:
        references.check(reference)
    except BadReference as exc:
        wrong = (400, "bad_request") if exc.bad_request else (404, "not_found")
        raise ProgramQueryFailed(*wrong, str(exc)) from None
    node = tree.nodes.get(reference)
    if node is None:
        raise ProgramQueryFailed(
            404,
            "not_found",
            f"no node {reference!r} is in the tree: it has ended, or never was; /v1/root leads to all there are",
        )
    return node
