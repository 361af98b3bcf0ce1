"""Compiled graphs in a cluster in memory: values, order, errors, ends."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import threading
import time
from typing import Any

import pytest

from monarch import graph
from monarch.actor import (
    Actor,
    ActorError,
    MessageTooLargeError,
    Port,
    SupervisionError,
    ValueMesh,
    concurrent_endpoint,
    context,
    current_rank,
    endpoint,
    this_host,
)
from monarch.actor._feeding import own_instance
from monarch.graph import InputNode, MultiOutput
from monarch.graph.joining import GraphJoining
from monarch.testing import InProcessCluster, Local
from tests.references.settling import until


class Worker(Actor):
    """Adds, and remembers."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @endpoint
    def add(self, x: Any, more: Any = 1) -> Any:
        self.seen.append(x)
        return x + more

    @endpoint
    def place(self, x: Any) -> tuple[int, int, str]:
        return current_rank().rank, len(current_rank().extent), context().actor_instance.name

    @endpoint
    def total(self, *values: Any) -> Any:
        return sum(sum(value.values()) if isinstance(value, ValueMesh) else value for value in values)

    @endpoint
    def odd(self, x: int) -> int:
        if x % 2:
            raise ValueError(f"{x} is odd")
        return x

    @endpoint
    def wait(self, x: Local[threading.Event]) -> Local[threading.Event]:
        x.value.wait(20)
        return x

    @endpoint
    def wait_if(self, x: Any) -> Any:
        if isinstance(x, Local):
            x.value.wait(20)
        else:
            self.seen.append(x)
        return x

    @endpoint
    def takes_part(self) -> bool:
        return own_instance().mailbox.feed is not None

    @endpoint
    def end(self, x: Any) -> None:
        raise KeyboardInterrupt

    @endpoint
    def large(self, size: int) -> bytes:
        return bytes(size)

    @endpoint
    def note(self, what: str) -> list[Any]:
        self.seen.append(what)
        return self.seen

    @endpoint
    def hold(self, begun: Local[threading.Event]) -> None:
        begun.value.set()
        while not own_instance().mailbox.messages:
            time.sleep(0)

    @endpoint(explicit_response_port=True)
    def by_port(self, port: Port[int], x: int) -> None:
        port.send(x)

    @concurrent_endpoint
    async def overlapping(self, x: int) -> int:
        return x


class Plain(Actor):
    """Has no event loop."""

    @endpoint
    def same(self, x: Any) -> Any:
        return x


class Later(Actor):
    """Has an event loop."""

    @endpoint
    async def double(self, x: int) -> int:
        await asyncio.sleep(0)
        return 2 * x


def spawn(ranks: int = 1, cls: Any = Worker) -> Any:
    return this_host().spawn_procs({"gpus": ranks}).spawn("workers", cls)


def test_a_chain_gives_what_calls_give(cluster: InProcessCluster) -> None:
    one, two = spawn(), spawn(cls=Later)
    with InputNode() as x:
        last = one.add.bind(two.double.bind(one.add.bind(x)), more=10)
    with graph.compile(last, depth=3) as compiled:
        assert [compiled.execute(n).get(10) for n in range(5)] == [2 * (n + 1) + 10 for n in range(5)]
        futures = [compiled.execute(n) for n in range(50)]  # more than the depth: waits for the oldest
        assert [future.get(10) for future in reversed(futures)][::-1] == [2 * (n + 1) + 10 for n in range(50)]


def test_nobody_can_make_the_memory_smaller(cluster: InProcessCluster) -> None:
    """Makes sure that an actor cannot end all others with SIGBUS."""
    one = this_host().spawn_procs({"gpus": 1}).spawn("one", Worker)
    with InputNode() as x:
        last = one.add.bind(x)
    with graph.compile(last) as compiled:
        assert compiled.execute(1).get(20) == 2
        found = [int(fd) for fd in os.listdir("/proc/self/fd") if "monarch-graph" in _link_of(fd)]
        assert found
        for fd in found:  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
            assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == 1 | 2 | 4
        assert compiled.execute(2).get(20) == 3


def _link_of(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


def test_fan_out_and_fan_in_over_ranks(cluster: InProcessCluster) -> None:
    many, one = spawn(3), spawn()
    with InputNode() as x:
        values = many.add.bind(x)
        places = many.place.bind(values)
        more = many.add.bind(values.by_rank(), values.by_rank())
        last = MultiOutput([one.total.bind(values, more), places, many.slice(gpus=2).place.bind(x)])
    with graph.compile(last) as compiled:
        total, found, at_two = compiled.execute(1).get(10)
    assert total == 3 * 2 + 3 * 4
    assert found.extent == many.extent
    assert found.values() == [(rank, 1, "workers") for rank in range(3)]
    assert at_two == (0, 0, "workers")


def test_several_arguments_by_place_and_name(cluster: InProcessCluster) -> None:
    one = spawn()
    x = InputNode()
    with graph.compile(one.add.bind(x[0], more=x["more"])) as compiled:
        assert compiled.execute(1, more=5).get(10) == 6
    said = "takes the one input of this graph, and got 2 arguments"
    with graph.compile(one.add.bind(x)) as compiled, pytest.raises(TypeError, match=said):
        compiled.execute(1, 2)


@pytest.mark.parametrize(
    ("args", "kwargs", "got"),
    [
        ((1,), {}, r"1 by place and \[\] by name"),
        ((1, 2), {"b": 3}, r"2 by place and \['b'\] by name"),
        ((1,), {"b": 3, "c": 4}, r"1 by place and \['b', 'c'\] by name"),
    ],
)
def test_other_arguments_than_those_that_were_bound_are_refused_here(
    cluster: InProcessCluster, args: Any, kwargs: Any, got: str
) -> None:
    x = InputNode()
    with graph.compile(spawn().add.bind(x[0], more=x["b"])) as compiled:
        with pytest.raises(TypeError, match=rf"bound with, 1 by place and \['b'\] by name, and got {got}"):
            compiled.execute(*args, **kwargs)
        assert compiled.execute(1, b=2).get(10) == 3


def test_an_exception_is_that_of_a_call_and_others_go_on(cluster: InProcessCluster) -> None:
    many, one = spawn(2), spawn()
    with InputNode() as x:
        last = one.note.bind(many.odd.bind(x))
    with graph.compile(last) as compiled:
        futures = [compiled.execute(n) for n in range(4)]
        errors = [futures[n].exception(10) for n in (1, 3)]
        assert [future.exception(10) for future in futures[::2]] == [None, None]
    with pytest.raises(ActorError) as of_call:
        many.slice(gpus=0).odd.call_one(3).get(10)
    error = errors[1]
    assert isinstance(error, ActorError)
    assert isinstance(error.exception, ValueError)
    assert (error.message, str(error.exception), error.rank, error.point) == (
        of_call.value.message, "3 is odd", 0, of_call.value.point,
    )  # fmt: skip
    assert error.exception_formatted == of_call.value.exception_formatted
    assert len(one.note.call_one("").get(10)) == 3  # it did not run for those that failed


def test_of_a_mesh_it_says_how_many_raised(cluster: InProcessCluster) -> None:
    with graph.compile(spawn(2).odd.bind(InputNode())) as compiled:
        error = compiled.execute(1).exception(10)
    assert isinstance(error, ActorError)
    assert (error.raised, error.ranks) == (2, 2)


def test_calls_are_served_between_executions(cluster: InProcessCluster) -> None:
    one, x = spawn(), InputNode()
    with graph.compile(MultiOutput([one.note.bind(x), one.add.bind(x, "!")])) as compiled:
        begun = Local(threading.Event())
        holding = one.hold.call_one(begun)  # until the call below has come
        begun.value.wait(10)
        execution = compiled.execute("step")
        call = one.note.call_one("call")
        for future in (holding, call, execution):
            future.get(10)
        seen = one.note.call_one("").get(10)
    assert seen == ["call", "step", "step", ""]


def test_what_is_too_large_names_the_buffer(cluster: InProcessCluster) -> None:
    one = spawn()
    x = InputNode()
    with graph.compile(one.large.bind(x), buffer="64KiB") as compiled:
        error = compiled.execute(100_000).exception(10)
        assert isinstance(error, ActorError)
        assert isinstance(error.exception, MessageTooLargeError)
        assert "the return value of workers.large() is 98 KiB" in str(error.exception)
        assert compiled.execute(10).get(10) == bytes(10)
    with graph.compile(one.note.bind(x), buffer=70_000) as compiled:
        with pytest.raises(MessageTooLargeError, match=r"the input is .* compile it with buffer=2000\d\d or more"):
            compiled.execute("x" * 200_000)
        assert compiled.execute("y").get(10)[-1] == "y"


def test_a_deadline_names_who_is_late_and_the_next_execution_goes_on(cluster: InProcessCluster) -> None:
    one, gate, open_gate = spawn(), Local(threading.Event()), Local(threading.Event())
    open_gate.value.set()
    with graph.compile(one.wait.bind(InputNode()), depth=1) as compiled:
        late = compiled.execute(gate, timeout=0.05)
        with pytest.raises(
            TimeoutError, match=r"more than 0.05 s: workers.wait\(\) of rank 0 has not returned; it goes on"
        ):
            late.get()
        with pytest.raises(TimeoutError, match=r"1 executions of the graph are under way.*nothing was begun"):
            compiled.execute(open_gate, timeout=0.05)
        gate.value.set()
        assert compiled.execute(open_gate, timeout=10).get().value is open_gate.value


def test_await(cluster: InProcessCluster) -> None:
    with graph.compile(spawn().add.bind(InputNode()), depth=4) as compiled:

        async def many() -> list[int]:
            return await asyncio.gather(*(one(n) for n in range(20)))

        async def one(number: int) -> int:
            return await compiled.execute(number)  # type: ignore[no-any-return]

        async def late(gate: Any) -> None:
            with pytest.raises(TimeoutError, match=r"more than 0\.05 s"):
                await waiting.execute(gate, timeout=0.05)

        assert asyncio.run(many()) == list(range(1, 21))
    gate = Local(threading.Event())
    with graph.compile(spawn().wait.bind(InputNode())) as waiting:
        asyncio.run(late(gate))
        gate.value.set()


def test_execute_async_leaves_the_loop_alone_while_the_graph_is_full_and_keeps_the_order(
    cluster: InProcessCluster,
) -> None:
    one, gate = spawn(), Local(threading.Event())

    async def open_later() -> list[Any]:
        first = await compiled.execute_async(gate)
        tasks = [asyncio.create_task(ask(x)) for x in range(1, 20)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        gate.value.set()  # by the loop that a full graph would have blocked
        await asyncio.gather(*tasks)
        gate.value.clear()
        gates = [await compiled.execute_async(gate) for _ in range(2)]
        waiting = asyncio.create_task(ask(20))
        await asyncio.sleep(0)
        gate.value.set()
        with pytest.warns(UserWarning, match="loop runs nothing"):
            gates[0].get(10)  # there is room, and who waits has not run yet
        last = await compiled.execute_async(21)
        assert [await waiting, await last] == [20, 21]
        return [(await first).value, await one.note.call_one("all")]

    async def ask(x: int) -> int:
        future = await compiled.execute_async(x)
        return await future  # type: ignore[no-any-return]

    with InputNode() as x:
        waits = one.wait_if.bind(x)
    with graph.compile(waits, depth=2) as compiled:
        event, seen = asyncio.run(asyncio.wait_for(open_later(), 20))
    assert event is gate.value
    assert seen == [*range(1, 22), "all"]


def test_execute_async_ends_with_its_deadline_its_task_and_the_graph(cluster: InProcessCluster) -> None:
    one, gate = spawn(), Local(threading.Event())
    compiled = graph.compile(one.wait_if.bind(InputNode()), depth=1)

    async def run() -> None:
        first = await compiled.execute_async(gate)
        with pytest.raises(TimeoutError, match=r"workers.wait_if\(\) of rank 0 has not returned: nothing was begun"):
            await compiled.execute_async(1, timeout=0.05)
        with pytest.raises(ValueError, match="invalid timeout"):
            await compiled.execute_async(1, timeout=-1)
        with pytest.raises(TypeError, match=r"takes the one input.*got 2"):
            await compiled.execute_async(1, 2)
        cancelled, last = (asyncio.create_task(compiled.execute_async(x)) for x in (2, 3))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        gate.value.set()
        assert await (await last) == 3
        assert (await first).value is gate.value

    async def close_while_it_waits() -> None:
        gate.value.clear()
        first = await compiled.execute_async(gate)
        waiting = [asyncio.create_task(compiled.execute_async(x)) for x in range(3)]
        await asyncio.sleep(0)
        closing = threading.Thread(target=compiled.close)
        closing.start()
        for task in waiting:
            with pytest.raises(RuntimeError, match="the graph was closed"):
                await task
        with pytest.raises(RuntimeError, match="the graph was closed"):
            await first
        gate.value.set()
        closing.join()

    asyncio.run(asyncio.wait_for(run(), 20))
    assert one.note.call_one("all").get(10) == [3, "all"]
    asyncio.run(asyncio.wait_for(close_while_it_waits(), 20))


def test_many_threads_wait_at_once(cluster: InProcessCluster) -> None:
    with graph.compile(spawn().add.bind(InputNode()), depth=4) as compiled:
        found: list[int] = []

        def run(first: int) -> None:
            found.extend(compiled.execute(first + n).get(20) for n in range(100))

        threads = [threading.Thread(target=run, args=(1000 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == sorted(1000 * n + k + 1 for n in range(4) for k in range(100))


@pytest.mark.parametrize("end", ["close", "stop"])
def test_an_event_loop_that_is_gone_keeps_no_thread_waiting(cluster: InProcessCluster, end: str) -> None:
    gates = [Local(threading.Event()) for _ in range(2)]
    found: list[Any] = []

    def run(future: Any) -> None:
        try:
            found.append(future.get())
        except BaseException as exc:
            found.append(exc)

    async def give_up(future: Any) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future, 0.01)

    with graph.compile(spawn().wait.bind(InputNode()), depth=4) as compiled:
        first, second, third = (compiled.execute(gate) for gate in (gates[0], gates[1], gates[1]))
        reads = threading.Thread(target=run, args=(first,), daemon=True)
        reads.start()
        until(compiled._reading.locked)
        loop = asyncio.new_event_loop()
        loop.run_until_complete(give_up(third))  # it waits to read next, and never comes round
        if end == "close":
            loop.close()
        waits = threading.Thread(target=run, args=(second,), daemon=True)
        waits.start()
        until(lambda: len(compiled._followers) == 2)
        for gate, thread in zip(gates, (reads, waits), strict=True):
            gate.value.set()
            thread.join(20)
        assert found == gates
        loop.close()


def test_two_graphs_of_one_actor(cluster: InProcessCluster) -> None:
    one, x = spawn(), InputNode()
    with graph.compile(one.add.bind(x)) as first, graph.compile(one.add.bind(x, 2)) as second:
        assert [first.execute(1).get(10), second.execute(1).get(10)] == [2, 3]
        first.close()
        assert second.execute(2).get(10) == 4
    assert one.add.call_one(1).get(10) == 2


def test_what_cannot_be_sent_says_why(cluster: InProcessCluster) -> None:
    one, x = spawn(), InputNode()
    with graph.compile(one.add.bind(InputNode())) as whole, graph.compile(one.add.bind(x[0], more=x["more"])) as parts:
        for execute, part in (
            (lambda: whole.execute([threading.Lock()]), r"argument 0\[0\]"),
            (lambda: parts.execute(1, more=threading.Lock()), "more"),
        ):
            with pytest.raises(TypeError, match="cannot pickle") as caught:
                execute()
            (note,) = caught.value.__notes__
            assert re.search(f"encoding the input of the graph: nothing was sent. {part} cannot be sent: .*lock", note)
        with pytest.raises(TypeError, match="a compiled graph belongs to the process that compiled it"):
            one.add.call_one(whole)


def test_a_closed_graph_says_so(cluster: InProcessCluster) -> None:
    one, gate = spawn(), Local(threading.Event())
    compiled = graph.compile(one.wait.bind(InputNode()))
    waiting = compiled.execute(gate)
    closing = threading.Thread(target=compiled.close)
    closing.start()
    with pytest.raises(RuntimeError, match="the graph was closed: compile it anew"):
        waiting.get(10)
    gate.value.set()
    closing.join()
    compiled.close()
    with pytest.raises(RuntimeError, match="the graph was closed"):
        compiled.execute(gate)
    assert "closed" in repr(compiled)


def test_in_an_event_loop_compile_and_close_say_how_they_are_called_there(cluster: InProcessCluster) -> None:
    last = spawn().add.bind(InputNode())

    async def use() -> None:
        with pytest.warns(UserWarning, match="active event loop") as told:
            graph.compile(last).close()
        for warning, instead in zip(told, ("compile, ...)", "graph.close)"), strict=True):
            assert str(warning.message).endswith(f"Use `await asyncio.to_thread({instead}` here")
            assert warning.filename == __file__
        compiled = await asyncio.to_thread(graph.compile, last)
        assert await compiled.execute(1) == 2
        await asyncio.to_thread(compiled.close)

    asyncio.run(use())


def test_the_end_of_an_actor_ends_the_graph_as_a_call_would_say_it(cluster: InProcessCluster) -> None:
    other, one, gate = spawn(), spawn(), Local(threading.Event())
    with InputNode() as x:
        last = other.note.bind(one.wait.bind(x))
    compiled = graph.compile(last)
    waiting = [compiled.execute(gate) for _ in range(2)]
    other.stop().get(10)
    errors = [future.exception(10) for future in waiting]
    gate.value.set()
    with pytest.raises(SupervisionError) as of_call:
        other.note.call("").get(10)
    with pytest.raises(SupervisionError) as of_later:
        compiled.execute(gate)
    for error in (*errors, of_later.value):
        assert (type(error), str(error)) == (SupervisionError, str(of_call.value))
    compiled.close()
    assert one.add.call_one(1).get(10) == 2


def test_one_that_ends_while_others_join_is_told_of_and_not_what_is_missing_of_it(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = spawn(), spawn()
    with InputNode() as x:
        last = other.add.bind(one.add.bind(x))

    def gone(*_: Any) -> None:
        one.stop().get(10)
        raise FileNotFoundError("/proc/1/fd/1")

    monkeypatch.setattr(GraphJoining, "join", gone)
    with pytest.raises(SupervisionError) as raised:
        graph.compile(last)
    with pytest.raises(SupervisionError) as of_call:
        one.add.call(1).get(10)
    assert str(raised.value) == str(of_call.value)
    monkeypatch.setattr("monarch.graph.compiled._SOON", 0.0)
    with pytest.raises(FileNotFoundError), monkeypatch.context() as patch:
        patch.setattr(GraphJoining, "share", gone)
        one = spawn()
        graph.compile(spawn().add.bind(InputNode()))


def test_those_that_live_leave_a_graph_that_one_did_not_live_to_join(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have entered, and have no memory in which they would see its end."""
    workers = spawn(3)
    share = GraphJoining.share

    def kill_one(*args: Any) -> Any:
        cluster.kill(workers, 1)
        cluster.next_failure()
        return share(*args)

    monkeypatch.setattr(GraphJoining, "share", kill_one)
    with pytest.raises(SupervisionError):
        graph.compile(workers.add.bind(InputNode()))
    assert [workers.slice(gpus=rank).takes_part.call_one().get(10) for rank in (0, 2)] == [False, False]


def test_an_actor_that_ends_within_the_first_step_of_a_program_ends_the_graph(cluster: InProcessCluster) -> None:
    one = spawn()
    compiled = graph.compile(one.end.bind(InputNode()))
    assert compiled._watches[0].number == 1, "the number that the calls of graphs once had"
    for _ in range(2):
        with pytest.raises(SupervisionError, match="KeyboardInterrupt"):
            compiled.execute(1).get(10)
    compiled.close()


@pytest.mark.parametrize(
    ("bind", "said"),
    [
        (lambda mesh: mesh.by_port.bind(InputNode()), "workers.by_port cannot be a node of a graph: it answers"),
        (lambda mesh: mesh.overlapping.bind(InputNode()), "its calls overlap"),
        (lambda mesh: mesh.add.with_timeout(1).bind(InputNode()), "give the limit to execute"),
    ],
)  # fmt: skip
def test_endpoints_that_graphs_cannot_run(cluster: InProcessCluster, bind: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        bind(spawn())


def test_arguments_are_checked_when_they_are_bound(cluster: InProcessCluster) -> None:
    with pytest.raises(TypeError, match="too many positional arguments"):
        spawn().add.bind(InputNode(), 1, 2)


def test_hosts_that_cannot_connect_are_refused() -> None:
    with InProcessCluster(hosts=2) as cluster:
        there = cluster.hosts.slice(hosts=1).spawn_procs({"gpus": 1}).spawn("far", Worker)
        with pytest.raises(ValueError, match=r"cannot connect to .* has no address that can be dialled. Use ordinary"):
            graph.compile(there.add.bind(InputNode()))


def test_an_actor_that_looks_just_when_its_graph_has_ended_goes_on(cluster: InProcessCluster) -> None:
    one = spawn(cls=Plain)
    for _ in range(30):
        compiled = graph.compile(one.same.bind(InputNode()))
        assert compiled._memory is not None
        compiled._memory.end()
        compiled.execute(1)  # rings: the actor looks, and leaves
        compiled.close()
    assert one.same.call_one(2).get(10) == 2
