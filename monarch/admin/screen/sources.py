"""Sources of the screen's data: a program's admin socket on this machine, or over HTTP. The calls wait."""

from __future__ import annotations

import json
import socket
import ssl
import urllib.error
import urllib.request
from typing import Any, Protocol

import msgspec

from monarch._linux.locks import Lock
from monarch._mesh.inspection import doctor
from monarch._mesh.inspection.diagnosis import Diagnosis
from monarch._mesh.inspection.status_tables import StatusTable
from monarch._mesh.output.kept import OutputPage
from monarch.admin import debugging
from monarch.admin.debugging import Visit
from monarch.admin.payloads import NO_CURVES, ApiErrorEnvelope, ConfigEntry, CurvesFound, NodePayload, Nodes
from monarch.admin.program_tree import ProgramTree
from monarch.admin.query import ProgramQueries, ProgramQueryFailed, Queryable
from monarch.admin.references import encoded
from monarch.admin.screen.attaching import StoppedEndpoint
from monarch.admin.screen.connection import AdminServer
from monarch.telemetry.starting import recorded_by

NODE, CONFIG, STACKS, WHOLE = 5.0, 8.0, 20.0, 10.0  # seconds that each may take


class NoAnswer(Exception):
    """The failure to get what was asked, and why."""


class ScreenSource(Protocol):
    """`name`: what is looked into, for the header. `pid`: of the program, where it runs on this machine."""

    name: str
    pid: int | None

    def nodes(self) -> list[NodePayload]:
        """The whole tree."""
        ...

    def node(self, reference: str) -> NodePayload:
        """One node in full, asked now."""
        ...

    def config(self, reference: str) -> list[ConfigEntry]: ...

    def stacks(self, reference: str) -> dict[str, Any]: ...

    def output(self, reference: str) -> list[OutputPage]:
        """Returns the last lines that a process has written."""
        ...

    def doctor(self) -> Diagnosis:
        """Finds what is wrong with the program, now: takes over a second."""
        ...

    def tables(self) -> list[StatusTable]:
        """Returns what parts of it tell of themselves, such as its services."""
        ...

    def metrics(self) -> CurvesFound:
        """Returns the curves of what it logs of itself."""
        ...

    def stopped(self) -> list[StoppedEndpoint]:
        """Returns its endpoints that stand at breakpoints."""
        ...


class LocalProgram(Queryable, Protocol):
    """A program on this machine: `programs.Program`, or one that stands for it."""

    folder: str

    def stream(self, name: str, argument: bytes = b"") -> socket.socket: ...


class SocketSource:
    """A program of this user on this machine, through its admin socket."""

    def __init__(self, program: LocalProgram, apart: float = doctor.APART) -> None:
        self.name = f"pid {program.pid}"
        self.pid: int | None = program.pid
        self._program = program
        self._apart = apart  # seconds between the doctor's looks
        self._queries = ProgramQueries(program)
        self._tree: ProgramTree | None = None
        self._lock = Lock()

    def nodes(self) -> list[NodePayload]:
        tree = self._new()
        return list(tree.nodes.values())

    def node(self, reference: str) -> NodePayload:
        tree = self._known()
        try:
            if reference in tree.addresses and tree.nodes[reference].properties.Actor is None:
                self._queries.reach(tree.addresses[reference])
            return self._queries.node(tree, reference)
        except ProgramQueryFailed as exc:
            raise NoAnswer(str(exc)) from None

    def config(self, reference: str) -> list[ConfigEntry]:
        try:
            return self._queries.config(self._known(), reference)
        except ProgramQueryFailed as exc:
            raise NoAnswer(str(exc)) from None

    def stacks(self, reference: str) -> dict[str, Any]:
        try:
            return self._queries.stacks(self._known(), reference, runtime=False)
        except ProgramQueryFailed as exc:
            raise NoAnswer(str(exc)) from None

    def output(self, reference: str) -> list[OutputPage]:
        try:
            return self._queries.output(self._known(), reference)
        except ProgramQueryFailed as exc:
            raise NoAnswer(str(exc)) from None

    def doctor(self) -> Diagnosis:
        try:
            return self._queries.doctor(self._apart)
        except ProgramQueryFailed as exc:
            raise NoAnswer(str(exc)) from None

    def tables(self) -> list[StatusTable]:
        try:
            return self._queries.tables()
        except ProgramQueryFailed as exc:
            raise NoAnswer(str(exc)) from None

    def metrics(self) -> CurvesFound:
        client = recorded_by(self._program.folder)
        if client is None:
            raise NoAnswer(NO_CURVES)
        try:
            return msgspec.convert(client.metrics(), CurvesFound)
        except (OSError, RuntimeError, msgspec.MsgspecError) as exc:
            raise NoAnswer(f"its telemetry at {client.url} does not answer: {exc}") from None

    def stopped(self) -> list[StoppedEndpoint]:
        try:
            return msgspec.convert(
                debugging.ask(self._program, Visit(debugging.LIST))["stopped"], list[StoppedEndpoint]
            )
        except (OSError, ValueError) as exc:
            raise NoAnswer(str(exc)) from None

    def _new(self) -> ProgramTree:
        try:
            tree = self._queries.tree()
        except ProgramQueryFailed as exc:
            raise NoAnswer(str(exc)) from None
        with self._lock:
            self._tree = tree
        return tree

    def _known(self) -> ProgramTree:
        with self._lock:
            tree = self._tree
        return self._new() if tree is None else tree


_LARGEST = 256 << 20  # bytes of an answer, as at a program's own door


class HttpSource:
    """A program whose admin server is reached over HTTP."""

    def __init__(self, connection: AdminServer) -> None:
        self.name = connection.url
        self.pid: int | None = None
        self._connection = connection
        # Proxies are for other sites.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if connection.tls is not None:
            context = ssl.create_default_context(cafile=connection.tls.ca or None)
            if connection.tls.certificate:
                context.load_cert_chain(connection.tls.certificate, connection.tls.key)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def nodes(self) -> list[NodePayload]:
        return self._get("/v1/nodes", Nodes, WHOLE).nodes  # type: ignore[no-any-return]

    def node(self, reference: str) -> NodePayload:
        return self._get(f"/v1/{encoded(reference)}", NodePayload, NODE)  # type: ignore[no-any-return]

    def config(self, reference: str) -> list[ConfigEntry]:
        return self._get(f"/v1/config/{encoded(reference)}", list[ConfigEntry], CONFIG)  # type: ignore[no-any-return]

    def stacks(self, reference: str) -> dict[str, Any]:
        return self._get(f"/v1/pyspy/{encoded(reference)}?program=1", dict[str, Any], STACKS)  # type: ignore[no-any-return]

    def output(self, reference: str) -> list[OutputPage]:
        return self._get(f"/v1/output/{encoded(reference)}", list[OutputPage], NODE)  # type: ignore[no-any-return]

    def doctor(self) -> Diagnosis:
        return self._get("/v1/doctor", Diagnosis, STACKS)  # type: ignore[no-any-return]

    def tables(self) -> list[StatusTable]:
        return self._get("/v1/tables", list[StatusTable], NODE)  # type: ignore[no-any-return]

    def metrics(self) -> CurvesFound:
        return self._get("/v1/metrics", CurvesFound, NODE)  # type: ignore[no-any-return]

    def stopped(self) -> list[StoppedEndpoint]:
        raise NoAnswer(
            "the debugger is reached on the machine where the program runs: there, `monarch debug` lists what stands at "
            "breakpoints, and `monarch tui` without --addr attaches with b"
        )

    def _get(self, path: str, type: Any, timeout: float) -> Any:
        request = urllib.request.Request(self._connection.url + path)
        if self._connection.token:
            request.add_header("Authorization", f"Bearer {self._connection.token}")
        try:
            with self._opener.open(request, timeout=timeout) as response:
                body = response.read(_LARGEST + 1)
        except urllib.error.HTTPError as exc:
            raise NoAnswer(_told(exc)) from None
        except urllib.error.URLError as exc:
            raise NoAnswer(self._unreachable(exc.reason)) from None
        except TimeoutError:
            raise NoAnswer(f"{self._connection.url} did not answer within {timeout:g} s") from None
        except OSError as exc:
            raise NoAnswer(self._unreachable(exc)) from None
        except Exception as exc:  # of http.client: what came is no HTTP
            raise NoAnswer(f"{self._connection.url} speaks no HTTP: {type(exc).__name__}: {exc}") from None
        if len(body) > _LARGEST:
            raise NoAnswer(f"{self._connection.url} is no admin server: it answers more than {_LARGEST >> 20} MiB")
        try:
            return msgspec.json.decode(body, type=type)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise NoAnswer(f"{self._connection.url} is no admin server of this version: {exc}") from None

    def _unreachable(self, reason: Any) -> str:
        url = self._connection.url
        if isinstance(reason, ssl.SSLCertVerificationError):
            return f"{url} shows a certificate that is not trusted ({reason.verify_message}): give its authority as --tls-ca"
        if isinstance(reason, ssl.SSLError):
            return f"{url} does not speak TLS ({reason.reason}): give http:// or --plaintext if it is meant to be plain"
        if isinstance(reason, TimeoutError):
            return f"{url} did not answer in time"
        return f"{url} cannot be reached: {getattr(reason, 'strerror', None) or reason}"


def _told(error: urllib.error.HTTPError) -> str:
    """Returns what the server says of an error."""
    body = error.read(1 << 16)
    try:
        return msgspec.json.decode(body, type=ApiErrorEnvelope).error.message
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    try:
        said = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        said = error.reason
    return f"{error.code}: {said}"
