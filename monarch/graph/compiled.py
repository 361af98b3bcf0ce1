"""Compiled graphs, as the process has them that compiled them: executions, their results, the end."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from monarch._linux import procfs
from monarch._linux.locks import Lock
from monarch.actor import ForkedClientError, Future, SupervisionError
from monarch.actor._feeding import (
    ActorsWatch,
    call_each,
    check_timeout,
    decode_answer,
    encode_call,
    encode_value,
    make_future,
    ordered,
)
from monarch.actor.lowlevel import Blocking, explain_unsendable, host_of, own_process, start_thread
from monarch.config import settings
from monarch.graph.bells import OtherBell, OwnBell
from monarch.graph.driver import mesh_of
from monarch.graph.execution import GraphExecution, nothing
from monarch.graph.gate import GateStream, GraphGate
from monarch.graph.hosts import CLIENT_HOST, PlanHosts, too_large
from monarch.graph.joining import GraphJoining
from monarch.graph.line import WaitingTasks
from monarch.graph.memory import VALUE, GraphMemory, Lent, Value
from monarch.graph.nodes import EndpointNode, MultiOutput
from monarch.graph.plan import INPUT_RING, Slots, make_plan

if TYPE_CHECKING:
    import asyncio

_PATIENCE = 30.0  # seconds for actors to leave a graph: they do once what they run has returned
_SOON = 1.0  # seconds within which the end of a process is told
_LATER = 5.0  # seconds after which a host counts as dead in which that is told


def _until(timeout: float | None) -> tuple[float | None, float | None]:
    """Returns the timeout, checked, and when it is over."""
    if timeout is None:
        return None, None
    timeout = check_timeout(timeout)
    return timeout, monotonic() + timeout


class CompiledGraph:
    """A graph that is ready to be executed: made by `compile`, ended by `close()` or at the end of a `with` block.

        with InputNode() as x:
            last = b.step.bind(a.step.bind(x))
        with monarch.graph.compile(last, depth=8) as graph:
            print(graph.execute(1).get())

    It belongs to the process that compiled it, any thread of which may execute it. Values go from process to process in
    shared memory, and between two hosts in one stream, without messages. Actors serve ordinary calls between two steps: a
    step goes behind the messages that wait when its values are there. Of several steps that are due an actor runs that of
    the oldest execution.

    Arrays and tensors in arguments lie in that memory, uncopied, and may be written to; what an endpoint keeps of them is
    copied when it has returned, and stays what it was. So do those of results, which are the caller's own.

    An exception of an endpoint is raised by the Future of its execution, as a call would raise it; later nodes of that
    execution do not run, other executions go on. When an actor or process of it ends, the graph ends as a whole: all
    executions raise what a call would; ConnectionError when a stream broke and everybody lives. Compile it anew after a
    restart. Since 0.2.0.
    """

    def __init__(self, output: EndpointNode | MultiOutput, depth: int, buffer: int | str) -> None:
        self._plan = plan = make_plan(output, depth, buffer)
        self._hosts = PlanHosts(plan, host_of(own_process()[0]))
        if why := too_large(self._hosts.gate(CLIENT_HOST), procfs.memory()[1], "this machine"):
            raise ValueError(why)
        self._lock = Lock()  # of beginning executions
        self._reading = Lock()  # who has it reads results
        self._followers: deque[Callable[[], bool]] = deque()  # of those who wait meanwhile: whether a thread was woken
        self._slots = Slots(depth)
        self._line = WaitingTasks()
        self._pending: deque[GraphExecution] = deque()
        self._lent: dict[int, list[Lent]] = {}  # by slot: results that may still be used
        self._sources = plan.sources()
        self._takes = plan.takes()
        self._error: BaseException | None = None
        self._seen: Callable[[], None] = nothing
        self._loops: dict[Any, int] = {}
        self._name = f"{os.getpid()}.{id(self):x}.{os.urandom(8).hex()}"
        self._bells: tuple[OtherBell | GateStream, ...] = ()  # of those who take the input
        self._watches: list[ActorsWatch] = []
        self._memory: GraphMemory | None = None
        self._gate: GraphGate | None = None  # where there are other hosts
        self._told = threading.Event()  # why it ended
        self._bell = OwnBell()
        self._closed = False
        self._pid = os.getpid()
        self._orders = [ordered(node.endpoint) for node in plan.nodes]
        with Blocking("monarch.graph.compile() was called", "Use `await asyncio.to_thread(compile, ...)` here"):
            try:
                self._compile()
            except BaseException:
                self.close()
                raise

    # --- compiling

    def _compile(self) -> None:
        back, incarnation = own_process()
        self._watches = [ActorsWatch(node.endpoint, self._failed) for node in self._plan.nodes]
        self._failed()
        if self._error is not None:
            raise self._ended()
        joining = GraphJoining(self._name, self._plan, self._hosts, self._orders, self._bell)
        joining.enter([watch.number for watch in self._watches], back, incarnation)
        try:
            if len(self._hosts) > 1:
                self._gate = joining.gate(self._stream_ended)
                joining.connect(self._gate)
            self._memory = joining.share(self._gate)
            self._spin = joining.spin
            self._bells = joining.input_bells
            joining.join(back)
        except Exception as exc:
            # Perhaps because somebody has ended, whose pipes and streams are gone before it is told.
            if not isinstance(exc, SupervisionError) and self._told.wait(_SOON):
                raise self._ended() from None
            raise

    # --- executing

    @property
    def memory(self) -> int:
        """Bytes of shared memory that it takes on this host at most; pages are taken when they are first used."""
        return self._hosts.memory(CLIENT_HOST)

    def execute(self, *args: Any, timeout: float | None = None, **kwargs: Any) -> Future[Any]:
        """Begins an execution, and gives the Future of its result. Arguments are encoded before it returns.

        While `depth` executions are under way it waits for the oldest of them. The Future raises TimeoutError when the result
        is not there `timeout` seconds after this call; the execution goes on then, and keeps its place until it is done.
        MessageTooLargeError when the arguments exceed `buffer`, TypeError when there are other arguments than the graph
        takes, RuntimeError when the graph was closed; what has ended the graph, if something has.
        """
        timeout, end = _until(timeout)
        body, buffers = self._encoded(args, kwargs)
        while (execution := self._begin(body, buffers, timeout, end)) is None:
            try:
                oldest = self._pending[0]
            except IndexError:  # it has just been done
                continue
            if not self._wait_done(oldest, end):
                raise self._not_begun(timeout)
        return make_future(execution)

    async def execute_async(self, *args: Any, timeout: float | None = None, **kwargs: Any) -> Future[Any]:
        """Does what `execute` does, for tasks: `await graph.execute_async(x)` gives the Future, to be awaited for the result.

        While `depth` executions are under way the task waits, and its event loop goes on. Tasks begin in the order in which
        they called this; threads that call `execute` meanwhile may go first. A task that is cancelled begins nothing. Raises
        what `execute` raises; `timeout` counts from this call. Since 0.2.0.
        """
        timeout, end = _until(timeout)
        body, buffers = self._encoded(args, kwargs)
        line = self._line
        if line.empty and (execution := self._begin(body, buffers, timeout, end)) is not None:
            return make_future(execution)
        import asyncio

        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        place = line.join(lambda: loop.call_soon_threadsafe(woken.set))
        stop = self._watch_on(loop)
        late = None if end is None else loop.call_later(max(0.0, end - monotonic()), woken.set)
        try:
            while True:
                woken.clear()
                if line.is_first(place) or self._error is not None:
                    execution = self._begin(body, buffers, timeout, end)
                    if execution is not None:
                        return make_future(execution)
                if end is not None and monotonic() >= end:
                    raise self._not_begun(timeout)
                await woken.wait()
        finally:
            line.leave(place)
            line.wake()  # the next may have room as well
            stop()
            if late is not None:
                late.cancel()

    def _encoded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
        self._check_process()
        if self._plan.parts:
            self._check_parts(args, kwargs)
        elif len(args) != 1 or kwargs:
            raise TypeError(
                f"execute() takes the one input of this graph, and got {len(args)} arguments and {len(kwargs)} by name: "
                f"bind x[0], x[1] or x['name'] for several"
            )
        try:
            return encode_call(args, kwargs) if self._plan.parts else encode_value(args[0])
        except Exception as exc:
            given = {f"argument {place}": arg for place, arg in enumerate(args)} | kwargs
            explain_unsendable(exc, "the input of the graph", given)
            raise

    def _check_parts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        count, names = self._takes
        if len(args) != count or kwargs.keys() != names:
            raise TypeError(
                f"execute() takes what the graph was bound with, {count} by place and {sorted(names)} by name, and got "
                f"{len(args)} by place and {sorted(kwargs)} by name"
            )

    def _begin(
        self, body: Any, buffers: Sequence[Any], timeout: float | None, deadline: float | None
    ) -> GraphExecution | None:
        """Begins an execution; None while as many are under way as may be."""
        with self._lock:
            memory = self._memory
            if self._error is not None or memory is None:
                raise self._ended()
            if self._slots.full:
                return None
            number, slot = self._slots.begin(self._in_use() if self._lent else ())
            try:
                if slot in self._lent:
                    self._take_back(slot)
                memory.write(INPUT_RING, slot, VALUE, body, buffers, "the input")
            except BaseException:
                self._slots.undo(slot)
                raise
            execution = GraphExecution(self, number, slot, timeout, deadline)
            self._pending.append(execution)
            memory.tell(INPUT_RING, number, slot)
        for bell in self._bells:
            bell.ring()
        if self._error is not None:  # it ended meanwhile, and this was perhaps not seen
            self._fail_all()
        return execution

    def _check_process(self) -> None:
        """Raises ForkedClientError in a forked child: it shares the memory, and its executions would come between those of
        its parent."""
        if os.getpid() != self._pid:
            raise ForkedClientError(
                f"this process was made by os.fork from the one that compiled the graph (pid {self._pid}), and the graph "
                f"belongs to that: execute it there"
            )

    def _not_begun(self, timeout: float | None) -> TimeoutError:
        pending = list(self._pending)
        return TimeoutError(
            f"{self._plan.depth} executions of the graph are under way, and none was done within {timeout:g} s"
            f"{self._awaited(pending[0]) if pending else ''}: nothing was begun"
        )

    def _ended(self) -> BaseException:
        if self._error is None:
            return RuntimeError("the graph was closed: compile it anew")
        self._seen()
        return self._error

    def _in_use(self) -> set[int]:
        return {slot for slot, lent in self._lent.items() if any(each.used for each in lent)}

    def _take_back(self, slot: int) -> None:
        memory = self._memory
        for lent in self._lent.pop(slot, ()):
            if memory is not None:
                memory.give_back(lent)

    # --- results

    def _due(self) -> bool:
        memory = self._memory
        if self._error is not None or memory is None:
            return True
        pending = self._pending
        return bool(pending) and memory.written.all(self._sources, pending[0].number)

    def _collect(self) -> None:
        """Reads what is there. Runs with `_reading` held."""
        if self._error is not None:
            self._fail_all()
            return
        while (memory := self._memory) is not None and self._pending and self._due():
            execution = self._pending[0]
            values, lent = memory.read(self._sources, execution.number)
            if lent:
                self._lent[execution.slot] = lent
            self._slots.finish(execution.slot)  # first: who begins another looks at what is pending while all are taken
            self._pending.popleft()
            self._line.wake()
            if not execution.ready:
                execution.values = values
                execution.set_ready()

    def _wait_for(self, execution: GraphExecution, end: float | None) -> bool:
        """Waits until it is ready; False at `end`."""
        deadline = execution.deadline
        if deadline is not None and (end is None or deadline < end):
            if not self._wait(execution.is_ready, deadline, execution.on_ready, execution.discard):
                execution.late()
            return True
        return self._wait(execution.is_ready, end, execution.on_ready, execution.discard)

    def _wait_done(self, execution: GraphExecution, end: float | None) -> bool:
        """Waits until it gives its slot back."""

        def done() -> bool:
            return self._slots.done > execution.number or self._error is not None

        return self._wait(done, end, _ignore, _ignore)

    def _wait(
        self,
        done: Callable[[], bool],
        end: float | None,
        on_ready: Callable[[Callable[[], Any]], None],
        discard: Callable[[Callable[[], Any]], None],
    ) -> bool:
        """Reads results until `done()`, or waits while another thread does; False at `end`."""
        self._check_process()
        while not done():
            if self._reading.acquire(False):
                try:
                    return self._read_until(done, end)
                finally:
                    self._reading.release()
                    if self._followers:
                        self._wake_follower()
            lock = threading.Lock()
            lock.acquire()

            def wake(lock: threading.Lock = lock) -> bool:
                try:
                    lock.release()
                except RuntimeError:  # it was woken before
                    return False
                return True

            self._followers.append(wake)
            on_ready(wake)
            try:
                left = -1.0 if end is None else end - monotonic()
                if not self._reading.locked() or done():
                    continue
                if end is not None and left <= 0:
                    return False
                lock.acquire(timeout=left)
            finally:
                discard(wake)
                try:
                    self._followers.remove(wake)
                except ValueError:  # it was to read next
                    self._wake_follower()
        return True

    def _read_until(self, done: Callable[[], bool], end: float | None) -> bool:
        self._collect()
        while not done():
            left = None if end is None else end - monotonic()
            if left is not None and left <= 0:
                return False
            if self._gate is not None and not self._loops:
                self._gate.sleep(self._bell, left, self._spin, self._due)
            elif not self._spin.until(self._due):
                self._bell.sleep(left)
            self._collect()
        return True

    def _wake_follower(self) -> None:
        """Wakes the first thread that waits, and the event loops before it: one of those may be closed, have stopped, or not
        come round for long."""
        while self._followers:
            try:
                wake = self._followers.popleft()
            except IndexError:
                return
            with contextlib.suppress(RuntimeError):
                if wake():
                    return

    def _watch_on(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        """Has results read by that loop, until the function that this returns is called."""
        self._check_process()
        if self._closed:  # who waits is told, and the bell may be gone
            return nothing
        awaits_turn = False

        def look() -> None:
            nonlocal awaits_turn
            awaits_turn = False
            if self._reading.acquire(False):
                try:
                    self._bell.forget()
                    self._collect()
                finally:
                    self._reading.release()
                    self._wake_follower()
            elif not awaits_turn:
                awaits_turn = True
                self._followers.append(look_again)

        def look_again() -> bool:
            loop.call_soon_threadsafe(look)
            return False

        if not self._loops.get(loop):
            loop.add_reader(self._bell.fileno(), look)
        self._loops[loop] = self._loops.get(loop, 0) + 1
        loop.call_soon(look)

        def stop() -> None:
            self._loops[loop] -= 1
            if not self._loops[loop]:
                del self._loops[loop]
                if not self._closed:
                    loop.remove_reader(self._bell.fileno())

        return stop

    def _result(self, values: dict[int, Value]) -> Any:
        made = [self._output(output.label, output.rings, output.extent, values) for output in self._plan.outputs]
        return made if self._plan.several else made[0]

    def _output(self, label: str, rings: Sequence[int], extent: Any, values: dict[int, Value]) -> Any:
        if extent is None:
            value = values[rings[0]]
            return decode_answer((0, value.kind, value.body, value.buffers), label)
        raw = [(rank, values[ring].kind, values[ring].body, values[ring].buffers) for rank, ring in enumerate(rings)]
        raised = [one for one in raw if one[1] != VALUE]
        if raised:
            decode_answer(raised[0], label, len(raised), len(raw))
        return mesh_of(extent, [decode_answer(one, label) for one in raw])

    def _awaited(self, execution: GraphExecution) -> str:
        memory = self._memory
        if memory is None or execution.number < self._slots.done:
            return ""
        heard = {} if self._gate is None else self._gate.heard
        for ring, made in enumerate(self._plan.rings):
            if not memory.written(ring, execution.number) and heard.get(ring, -1) < execution.number:
                return f": {made.label}() of rank {made.rank} has not returned"
        return ""

    # --- the end

    def _failed(self) -> None:
        """An actor, or its process, has ended. On the I/O thread."""
        watch = next((watch for watch in self._watches if watch.ready), None)
        if watch is None or self._error is not None or self._closed:
            return
        self._end_with(*watch.outcome())

    def _stream_ended(self, words: str) -> None:
        start_thread(self._broken, "monarch-graph", words)

    def _broken(self, words: str) -> None:
        """A stream has ended. Of the end of an actor or a host, if that is why, the runtime tells."""
        patience = settings.channel_reconnect_timeout() + _LATER
        if not self._told.wait(patience) and not self._closed:
            self._end_with(
                ConnectionError(
                    f"the graph has ended: {words or 'a host has left it'}, and within {patience:g} s no end of an actor or "
                    f"a host was told: compile it anew"
                ),
                nothing,
            )

    def _end_with(self, error: BaseException, seen: Callable[[], None]) -> None:
        self._error, self._seen = error, seen
        self._told.set()
        self._fail_all()
        if self._memory is not None:
            self._memory.end()
        for bell in self._bells:
            bell.ring()
        self._bell.ring()
        if self._gate is not None:
            start_thread(self._gate.end, "monarch-graph")  # it may wait, and this may be the I/O thread

    def _fail_all(self) -> None:
        error, seen = self._error, self._seen
        assert error is not None
        for execution in list(self._pending):
            execution.fail(error, seen)
        self._line.wake_all()
        self._seen = nothing  # those have it: if nobody sees it there, the owner is told

    def close(self) -> None:
        """Ends the graph: executions under way raise RuntimeError, actors leave it once what they run has returned. Nothing
        of it stays behind. May be called again; after the end of an actor as well. Nothing in a forked child."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._error is None:
                self._error = RuntimeError("the graph was closed: compile it anew")
        self._told.set()
        if self._memory is not None:
            self._memory.end()
        self._bell.ring()
        if self._gate is not None:
            self._gate.end()
        for watch in self._watches:
            watch.close()
        with Blocking("close() of a compiled graph was called", "Use `await asyncio.to_thread(graph.close)` here"):
            self._have_actors_leave()
        with self._reading:
            self._fail_all()
            self._pending.clear()
            for slot in list(self._lent):
                self._take_back(slot)
            for loop in list(self._loops):
                with contextlib.suppress(Exception):  # a loop that was closed has no readers
                    loop.remove_reader(self._bell.fileno())
            memory, self._memory = self._memory, None
            if memory is not None:
                memory.close()
            for bell in self._bells:
                bell.close()
            if self._gate is not None:
                self._gate.close()
            self._bell.close()
        self._wake_follower()

    def _have_actors_leave(self) -> None:
        calls = []
        for order in self._orders:
            with contextlib.suppress(Exception):  # the runtime is shutting down, or the mesh was stopped
                calls.append((order, order.call("leave", self._name)))
        alone = []
        for order, call in calls:
            try:
                call.get(_PATIENCE)
            except SupervisionError:  # one has ended, and perhaps no other was told
                with contextlib.suppress(Exception):
                    alone += call_each(order, "leave", self._name)
            except Exception:
                pass
        for one in alone:
            with contextlib.suppress(Exception):  # what has ended needs not leave
                one.get(_PATIENCE)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a compiled graph belongs to the process that compiled it and cannot be sent: send the meshes, and bind and "
            "compile there; or have an endpoint here execute it"
        )

    def __enter__(self) -> CompiledGraph:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "ended" if self._error is not None else "ready"
        nodes = " -> ".join(node.facts.label for node in self._plan.nodes[:8])
        return f"<CompiledGraph {nodes} ({state}, {len(self._pending)} of {self._plan.depth} under way)>"


def _ignore(_wake: Any) -> None:
    return None


def compile(output: EndpointNode | MultiOutput, *, depth: int = 8, buffer: int | str = "1MiB") -> CompiledGraph:
    """Makes a graph ready to be executed: checks it, gives it shared memory, and has its actors join.

    `output`: the node, or a MultiOutput of several, whose values an execution gives; it leads back to all others. `depth`:
    how many executions may be under way at once. `buffer`: how large each value may be, in bytes or as "64MiB"; where one is
    larger, the error says which. Takes memory for depth x buffer for each value, as it is used.

    ValueError or TypeError when something is wrong with the graph: a cycle, a node that takes nothing of it, more memory than
    a host has, endpoints that overlap or answer through a port, hosts that cannot connect (they speak through a gateway, or
    with TLS and without the package cryptography). What a call would raise when an actor has ended.

    It waits for the actors, as does `close`; in an event loop: `await asyncio.to_thread(compile, output)`. Since 0.2.0.
    """
    return CompiledGraph(output, depth, buffer)
