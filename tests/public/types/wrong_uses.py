"""Uses that both type checkers must refuse. Each line that says so is an error in mypy and in pyright, and no other line is:
a comment that silences nothing is itself an error (`make check`). Never run.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=error

from __future__ import annotations

from monarch.actor import (
    Accumulator,
    Actor,
    Channel,
    Future,
    Port,
    ValueMesh,
    concurrent_endpoint,
    endpoint,
    get_or_spawn_controller,
    send,
    this_host,
)


class Counter(Actor):
    def __init__(self, start: int, *, step: int = 1) -> None:
        self.value = start

    @endpoint
    def add(self, amount: int, twice: bool = False) -> int:
        self.add("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        return self.value

    @endpoint
    async def name(self) -> str:
        text: str = self.name()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        return text

    @endpoint(instrument=False)
    def option(self, text: str) -> bytes:
        return text.encode()

    @endpoint(explicit_response_port=True)
    def later(self, port: Port[str], times: int) -> None: ...

    @endpoint(explicit_response_port=True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    def no_port(self, times: int) -> None: ...

    @concurrent_endpoint  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    def not_async(self) -> None: ...

    def helper(self) -> None: ...


class Other(Counter):
    @endpoint
    def add(self, amount: str) -> int:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        return len(amount)


class Plain:
    def __init__(self, start: int) -> None: ...


procs = this_host().spawn_procs({"gpus": 2})
counters = procs.spawn("counters", Counter, 10)

# Arguments and names of endpoints.
counters.add.call("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
counters.add.call()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
counters.add.call(1, True, 3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
counters.add.call_one(amout=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
counters.add.choose(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
counters.add.broadcast(1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
counters.add.stream([])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
counters.add.with_timeout("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
counters.add.with_timeout(1).call("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
counters.slice(gpus=0).add.call_one("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
counters.option.call(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
counters.later.call("two")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
counters.ad.call(1)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
counters.add.cal(1)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
counters.helper.call()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
Counter.add.call(1)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

# Results.
many: Future[int] = counters.add.call(1)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
text: str = counters.add.choose(1).get()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
number: int = counters.add.choose(1)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
values: ValueMesh[str] = counters.add.call(1).get()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
for _forgot_get in counters.add.call(1):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
    pass

# Spawning.
procs.spawn("a", Counter)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
procs.spawn("b", Counter, "10")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
procs.spawn("c", Counter, 10, 2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
procs.spawn("d", Counter, 10, stp=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
procs.spawn("e", Counter(10))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
procs.spawn("f", Plain, 10)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
get_or_spawn_controller("g", Counter, "10")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
endpoint(explicit_port=True)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]

# Ports.
port, receiver = Channel[int].open()
port.send("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
line: str = receiver.recv().get()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
strings, _ = Channel[str].open()
send(counters.add, (1,), {}, strings)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
total = Accumulator(counters.add, 0, lambda sum, value: sum + value)
total.accumulate("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
