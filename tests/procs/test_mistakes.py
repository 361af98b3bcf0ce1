"""Thirty mistakes that one makes in the first hour, and what each message says: what went wrong, where, and what to do.

Grades: A says all three. B says what and where, and what to do follows from it. C leaves one at a loss: none is left.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from monarch import configure
from monarch.actor import Actor, ActorMesh, ProcMesh, attach_to_workers, endpoint, this_host
from monarch.job import hosts_from_config
from monarch.tools import cli
from tests.support.patience import TIMEOUT
from tests.support.tiers import full


class Worker(Actor):
    @endpoint
    def add(self, a: int, b: int) -> int:
        return a + b

    def helper(self) -> int:
        return 1

    @endpoint
    def divide(self, by: int) -> float:
        return 1 / by

    @endpoint
    def lock(self) -> Any:
        return threading.Lock()

    @endpoint
    def file(self) -> Any:
        return open("/dev/null")

    @endpoint
    def reduce(self) -> None:
        import torch
        import torch.distributed

        torch.distributed.all_reduce(torch.ones(1))

    @endpoint
    def wait(self) -> None:
        threading.Event().wait(0.5)


class Model(Actor):
    def __init__(self, width: int) -> None:
        self.width = width


class Reader(Actor):
    def __init__(self) -> None:
        raise FileNotFoundError("/data/train.bin")

    @endpoint
    def ready(self) -> None: ...


class Plain:
    pass


class Mistake(NamedTuple):
    """`do` makes it, with the processes and the workers on them; `words` are those of its message that one needs."""

    do: Callable[[Any, Any], object]
    grade: str
    words: list[str]


def no_self(procs: ProcMesh, workers: Worker) -> None:
    class Selfless(Actor):
        @endpoint
        def train() -> None: ...  # type: ignore[misc]


def stopped(procs: ProcMesh, workers: Worker) -> None:
    others = this_host().spawn_procs({"gpus": 1})
    actors: Any = others.spawn("others", Worker)
    others.stop().get(timeout=TIMEOUT)
    actors.add.call(1, 2).get(timeout=TIMEOUT)


def awaited_twice(procs: ProcMesh, workers: Any) -> None:
    async def main() -> None:
        await (await workers.add.call(1, 2))

    asyncio.run(main())


def project(text: str) -> Callable[[Any, Any], object]:
    def do(procs: Any, workers: Any) -> None:
        Path("monarch.toml").write_text(text)
        hosts_from_config("trainers")

    return do


# Those that are found out before anything is started.
AT_HOME = {
    "a dimension's size is a text": Mistake(
        lambda p, w: this_host().spawn_procs({"gpus": "4"}),  # type: ignore[dict-item]
        "A",
        ["per_host dimension 'gpus'", "size of 1 or more", "got '4'"],
    ),
    "a number for the shape": Mistake(
        lambda p, w: this_host().spawn_procs(4),  # type: ignore[arg-type]
        "A",
        ['spawn_procs({"gpus": 4})', "got 4"],
    ),
    "an actor that one constructs": Mistake(
        lambda p, w: Worker().add.call(1, 2),
        "A",
        ["instance of Worker", 'mesh = procs.spawn("worker", Worker, ...)', "mesh.add.call(...)"],
    ),
    "an endpoint of the class": Mistake(
        lambda p, w: Worker.add.call(1, 2), "A", ["Worker is the class", "procs.spawn(", "mesh.add.call(...)"]
    ),
    "an endpoint without self": Mistake(no_self, "A", ["no_self.<locals>.Selfless.train", "self", "def train(self)"]),
    "no secret": Mistake(
        lambda p, w: attach_to_workers(workers=["tcp://node1:26600"]),
        "A",
        ["nothing protects tcp://node1:26600", "MONARCH_SECRET_FILE", "`monarch secret FILE` makes one"],
    ),
    "an address without tcp://": Mistake(
        lambda p, w: attach_to_workers(workers=["node1:26600"]), "A", ["'node1:26600'", "expected tcp://host:port"]
    ),
    "a setting that does not exist": Mistake(
        lambda p, w: configure(show_progres=True),
        "A",
        ["`show_progres`", "did you mean `show_progress`?", "settings.md"],
    ),
    "monarch.toml: no TOML": Mistake(project("[jobs.a\n"), "B", ["monarch.toml is not TOML", "at line 1"]),
    "monarch.toml: a job's class": Mistake(
        project('[jobs.a]\nclass = "ProcesJob"\n'),
        "A",
        ["monarch.toml: job a", "'ProcesJob'", "did you mean ProcessJob?"],
    ),
    "monarch.toml: a job's argument": Mistake(
        project('[jobs.a]\nclass = "ProcessJob"\nmesh = { trainers = 2 }\n'),
        "A",
        ["monarch.toml: job a", "argument 'mesh'", "did you mean meshes?"],
    ),
}

# Those that need actors to make them with.
WITH_ACTORS = {
    "an endpoint called like a method": Mistake(
        lambda p, w: w.add(1, 2), "A", ["endpoint 'add'", "say how, with .call(...)"]
    ),
    "a method that is no endpoint": Mistake(
        lambda p, w: w.helper.call(), "A", ["Worker.helper is not annotated as an endpoint", "@endpoint"]
    ),
    "an endpoint's name": Mistake(
        lambda p, w: w.ad.call(1, 2), "A", ["Worker has no endpoint 'ad'", "Did you mean: 'add'?"]
    ),
    "an argument left out": Mistake(
        lambda p, w: w.add.call(1), "A", ["missing a required argument: 'b'", "it is Worker.add(a"]
    ),
    "call_one of many": Mistake(
        lambda p, w: w.add.call_one(1, 2), "A", ["exactly 1 actor, but mesh has 2", "use call(), choose(), or slice"]
    ),
    "get before call": Mistake(lambda p, w: w.add.get(), "A", ["say first how 'add' is called", ".call(...)"]),
    "a Future taken for its result": Mistake(
        lambda p, w: w.add.call(1, 2) + 1, "A", ["it is a Future, of workers.add()", "with .get(), or with await"]
    ),
    "all results taken for one": Mistake(
        lambda p, w: w.add.call(1, 2).get() + 1, "A", ["the result of each rank", ".values()", ".item(gpus=0)"]
    ),
    "a result by its number": Mistake(
        lambda p, w: w.add.call(1, 2).get()[0], "A", ["not subscriptable", ".values()", ".get(0)"]
    ),
    "a result by a wrong dimension": Mistake(
        lambda p, w: w.add.call(1, 2).get().item(gpu=1), "A", ["item(gpus=0)", "there is no dimension 'gpu'"]
    ),
    "a result awaited twice": Mistake(awaited_twice, "B", ["ValueMesh can't be used in 'await'"]),
    "a slice by a wrong dimension": Mistake(lambda p, w: w.slice(gpu=0), "A", ["'gpu'", "Did you mean 'gpus'?"]),
    "a slice outside of the mesh": Mistake(
        lambda p, w: w.slice(gpus=7), "B", ["out of range: gpus=7", "dimension 'gpus' has size 2"]
    ),
    "an attribute of an actor": Mistake(
        lambda p, w: w.learning_rate,
        "A",
        ["Worker has no endpoint 'learning_rate'", "in the actors' processes", "through an endpoint"],
    ),
    "a class that is no actor": Mistake(
        lambda p, w: p.spawn("plain", Plain), "A", ["Plain must subclass", "class Plain(Actor)"]
    ),
    "spawn without a name": Mistake(
        lambda p, w: p.spawn(Worker), "A", ["'Class'", 'procs.spawn("counters", Counter, ...)']
    ),
    "a constructor's argument left out": Mistake(
        lambda p, w: p.spawn("models", Model), "A", ["argument: 'width'", "it is Model.__init__(width"]
    ),
    "a constructor that raises": Mistake(
        lambda p, w: p.spawn("readers", Reader).ready.call().get(timeout=TIMEOUT),
        "B",
        ["readers.ready() failed", "Reader.__init__ raised", "in __init__", "FileNotFoundError: /data/train.bin"],
    ),
    "an endpoint that raises": Mistake(
        lambda p, w: w.divide.call(0).get(timeout=TIMEOUT),
        "B",
        [
            "workers.divide failed",
            "Rank 0 (gpus=0)",
            "2 of 2",
            "test_mistakes.py",
            "return 1 / by",
            "ZeroDivisionError",
        ],
    ),
    "a lock as an argument": Mistake(
        lambda p, w: w.add.call(threading.Lock(), 1),
        "A",
        ["workers.add()", "a cannot be sent", "make them where they are used"],
    ),
    "a lock as a result": Mistake(
        lambda p, w: w.lock.call().get(timeout=TIMEOUT),
        "A",
        ["return value of Worker.lock", "make them where they are used"],
    ),
    "an open file as a result": Mistake(
        lambda p, w: w.file.call().get(timeout=TIMEOUT),
        "A",
        ["return value of Worker.file", "send its path, and open it there"],
    ),
    "a limit that is too short": Mistake(
        lambda p, w: w.wait.call().get(timeout=0.01), "A", ["from workers.wait(), rank(s) 0, 1", "`monarch doctor`"]
    ),
    "processes that were stopped": Mistake(
        stopped, "A", ["others.add() failed", "the process was stopped", "spawn it anew"]
    ),
    "a collective without a process group": Mistake(
        lambda p, w: w.reduce.call().get(timeout=TIMEOUT),
        "A",
        ["workers.reduce failed", "all_reduce(torch.ones(1))", "setup_torch_distributed(procs).get()"],
    ),
}

# Those in a shell.
COMMANDS = {
    "a verb": ("lgos", "A", ["'lgos'", "did you mean 'logs'?"]),
    "processes a node": (
        "run --nproc-per-node x hello.py",
        "A",
        ["--nproc-per-node is a number, auto, cpu or gpu", "'x'"],
    ),
    "a job's module": (
        "apply cluster.job",
        "A",
        ["No module named 'cluster'", "there is no cluster.py in", "installed"],
    ),
    "a worker without a secret": (
        "worker --address tcp://*:26600",
        "A",
        ["nothing protects tcp://*:26600", "monarch secret"],
    ),
    "no job runs": ("kill", "B", ["no job runs in context 'default' of this folder"]),
}


def said(error: BaseException) -> str:
    return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])


def check(mistake: Mistake, procs: Any, workers: Any) -> None:
    with pytest.raises(BaseException) as caught:
        mistake.do(procs, workers)
    text = said(caught.value)
    assert [word for word in mistake.words if word not in text] == [], text


@pytest.fixture
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("MONARCH_SECRET", "MONARCH_SECRET_FILE", "MONARCH_JOB"):
        monkeypatch.delenv(name, raising=False)


def test_there_are_thirty_and_none_leaves_one_at_a_loss() -> None:
    grades = [one.grade for one in (*AT_HOME.values(), *WITH_ACTORS.values())] + [
        grade for _, grade, _ in COMMANDS.values()
    ]
    assert len(grades) >= 30
    assert set(grades) == {"A", "B"}
    assert grades.count("A") >= 4 * grades.count("B")


@pytest.mark.parametrize("name", AT_HOME)
@pytest.mark.usefixtures("_elsewhere")
def test_before_anything_is_started(name: str) -> None:
    check(AT_HOME[name], None, None)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("_elsewhere")
def test_in_a_shell(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    line, _, words = COMMANDS[name]
    try:
        status = cli.main(line.split())
    except SystemExit as exc:
        status = exc.code  # type: ignore[assignment]
    text = capsys.readouterr().err
    assert status
    assert [word for word in words if word not in text] == [], text


@pytest.fixture(scope="module")
def workers(procs2: ProcMesh) -> Iterator[ActorMesh[Worker]]:
    mesh: Any = procs2.spawn("workers", Worker)
    yield mesh
    mesh.stop().get(timeout=TIMEOUT)


@full
@pytest.mark.parametrize("name", WITH_ACTORS)
def test_with_actors(name: str, procs2: ProcMesh, workers: ActorMesh[Worker]) -> None:
    if "process group" in name:
        pytest.importorskip("torch", reason="makes collectives of torch")
    check(WITH_ACTORS[name], procs2, workers)
