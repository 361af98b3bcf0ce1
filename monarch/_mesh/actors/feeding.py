"""Means of packages that call endpoints without messages, as `monarch.graph` does: facts of an endpoint, calls that are put
into an actor's mailbox in its own process, answers as ordinary calls have them, and word of the end of actors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch._errors import MessageTooLargeError
from monarch._mesh.actors.adverb_codes import CALL, CALL_ONE
from monarch._mesh.actors.behaviour import ActorBehaviour
from monarch._mesh.actors.endpoint import Endpoint, EndpointProperty
from monarch._runtime.context import current, here, root
from monarch._runtime.future import Future, make_future, no_value
from monarch._runtime.instance import Fed, Instance
from monarch._runtime.remote_errors import RemoteError, decode_failure, decode_remote_error
from monarch._runtime.replies import Gather, OneReply
from monarch._shape.extent import Extent
from monarch._text import clip
from monarch._wire import message
from monarch._wire.frame import Buffer
from monarch._wire.message import ERROR, FAILED, VALUE, Call

if TYPE_CHECKING:
    from monarch._runtime.streams import Stream

_TEXT = 2_000  # characters of each text of an error that is cut to fit
SMALLEST_ANSWER = 64 << 10  # bytes that hold every error once it is cut


class EndpointFacts(NamedTuple):
    """The facts of an endpoint that a plan has to know: `key` names the mesh, `ranks[i]` is the actor of the view's rank i
    there, `addresses[i]` its process. `why_not` says why it cannot be called without messages; "" if it can."""

    key: str
    label: str
    method: str
    ranks: tuple[int, ...]
    addresses: tuple[str, ...]
    view: bytes
    extent: Extent
    why_not: str


def endpoint_facts(endpoint: Endpoint[Any, Any]) -> EndpointFacts:
    mesh, prop = endpoint._mesh, endpoint._property
    plan, why_not = mesh._plan, ""
    if prop._concurrent:
        why_not = "its calls overlap and end in any order (@concurrent_endpoint): make it an @endpoint"
    elif prop._user_port:
        why_not = "it answers through a port (explicit_response_port): return the value from an ordinary @endpoint"
    elif endpoint._timeout is not None:
        why_not = "with_timeout is for calls: give the limit to execute(..., timeout=)"
    return EndpointFacts(
        mesh._spec.key,
        f"{mesh._spec.name}.{endpoint._name}",
        endpoint._name,
        plan.ranks,
        plan.addresses,
        plan.view,
        mesh._shape.extent,
        why_not,
    )


def check_bound(endpoint: Endpoint[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises TypeError for arguments that the endpoint does not take."""
    if endpoint._property._checked:
        endpoint._check(args, kwargs)


def is_own(facts: EndpointFacts) -> bool:
    """Returns whether the running actor is among those."""
    running = current.get()
    return running is not None and running.instance.key == facts.key and running.instance.rank in facts.ranks


def open_stream_to(address: str, purpose: str, timeout: float) -> Stream:
    """Does what `open_stream` says, to the process of that address, and with TLS where the job has it."""
    return here().streams().open_either(address, purpose, timeout)


def take_streams(purpose: str, handler: Callable[[Stream], None]) -> None:
    """Does what `serve_streams` says, also for those with TLS."""
    here().streams().serve_either(purpose, handler)


# Of a call that is waited for, but not at a port: another number may be that of a port of the same process, as of a watch.
_NO_PORT = -1


def ordered(endpoint: Endpoint[Any, Any]) -> Endpoint[Any, Any]:
    """Returns the endpoint by which those actors are told of a graph."""
    method = endpoint._mesh._spec.cls._serve_graph  # type: ignore[attr-defined]
    return Endpoint(endpoint._mesh, "_serve_graph", EndpointProperty(method, checked=False))


def call_each(endpoint: Endpoint[Any, Any], *args: Any) -> list[Future[Any]]:
    """Calls the endpoint on every rank by itself: a `call` goes to nobody when a rank is known to have ended."""
    futures: list[Future[Any]] = []
    for rank in range(len(endpoint._mesh._plan)):
        entry = OneReply(endpoint._target or endpoint._make_target(), rank)
        endpoint._cast(entry, CALL_ONE, args, {}, only=rank)
        futures.append(make_future(entry))
    return futures


def own_instance() -> Instance:
    """Returns the actor that runs here. RuntimeError outside of any."""
    running = current.get()
    if running is None:
        raise RuntimeError("no actor runs here")
    return running.instance


def sender_name() -> str:
    """Returns the unique name of the running actor, or of the client."""
    running = current.get()
    return (root() if running is None else running.instance).unique


def call_for(instance: Instance, method: str, rank: int, view: bytes, sender: str, back: str) -> Call:
    """Makes the Call of a Fed: `rank` of `view` is who was addressed, the answer is waited for."""
    return Call(instance.key, sender, 0, method, _NO_PORT, back, rank, view, CALL, instance.incarnation)


class FedCall(Fed, kw_only=True, eq=False):
    """A call of an actor that runs in this process, which came without a message: subclasses give its `arguments`, and `keep`
    the answer."""

    instance: Instance

    def answer(self, kind: int, body: Buffer, buffers: Sequence[Buffer]) -> None:
        try:
            self.keep(kind, body, buffers)
        except MessageTooLargeError as exc:
            if kind != VALUE:
                self.keep(kind, cut(kind, body), ())
                return
            assert isinstance(self.instance.behaviour, ActorBehaviour)
            self.instance.behaviour._reply_error(self, exc)  # as if the endpoint had raised it

    def keep(self, kind: int, body: Buffer, buffers: Sequence[Buffer]) -> None:
        """Takes the answer. MessageTooLargeError when there is no room for it: the error is the answer then, cut to
        SMALLEST_ANSWER bytes if need be."""
        raise NotImplementedError


def cut(kind: int, body: Buffer) -> bytes:
    """Makes an error, or a failure, fit into SMALLEST_ANSWER bytes: its texts are cut, the exception itself is left out."""
    if kind == ERROR:
        error = decode_remote_error(body)
        return message.encode(
            RemoteError(
                clip(error.message, _TEXT), clip(error.formatted, _TEXT), b"", error.rank, error.point, error.host
            )
        )
    if kind == FAILED:
        failure = decode_failure(body)
        failure.report, failure.error = clip(failure.report, _TEXT), b""
        return message.encode(failure)
    raise ValueError("only errors can be cut")


class ActorsWatch(Gather):
    """Word of the end of the actors of an endpoint: `failed()` is called once, on the I/O thread, when one has failed or
    stopped, or its process has ended. `number` is for actors to note (`expect_end`)."""

    __slots__ = ()

    def __init__(self, endpoint: Endpoint[Any, Any], failed: Callable[[], None]) -> None:
        target = endpoint._mesh._target(endpoint._name)
        target.key, target.ranks = endpoint._mesh._spec.key, endpoint._mesh._plan.ranks
        super().__init__(target, len(endpoint._mesh), no_value)
        running = current.get()
        self.caller = root() if running is None else running.instance
        proc = self.caller.proc
        known = proc.hooks.check(target.key, endpoint._mesh._plan.receivers)
        proc.ports.add(self)
        self.on_ready(failed)
        if known is not None:
            self.fail(known)

    def process_replaced(self, ended: message.ProcEnded) -> None:
        self.process_ended(ended)

    def outcome(self) -> tuple[BaseException, Callable[[], None]]:
        """Returns what a call of the endpoint would raise, and what is to be called once somebody has seen it: when that
        function is dropped uncalled, the owner of the actors is told."""
        assert self._error is not None
        unobserved, self.unobserved = self.unobserved, None
        return self._error, _nothing_to_see if unobserved is None else unobserved.seen


def _nothing_to_see() -> None:
    return None


def expect_end(instance: Instance, back: str, number: int, rank: int) -> Callable[[], None]:
    """Has the end of this actor told to an ActorsWatch of the process `back`. Returns what ends that."""
    waiting = (back, number, rank)
    instance.open_ports.add(waiting)
    return lambda: instance.open_ports.discard(waiting)
