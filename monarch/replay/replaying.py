"""`replay(path)`: builds the actor of a recording here, alone, and does to it what was done to it then."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib
import linecache
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from monarch._linux import private_files
from monarch._mesh.actors.behaviour import ActorBehaviour
from monarch._mesh.process.mesh_layer import MeshLayer
from monarch._runtime.context import home, set_home
from monarch._runtime.driver import run
from monarch._runtime.instance import Instance
from monarch._runtime.loop import Loop
from monarch._runtime.proc import Proc
from monarch._text import clip
from monarch._wire import codec
from monarch._wire.message import VALUE, ProcStarted, SpawnProcs, StopProcs
from monarch.config import settings
from monarch.replay import environment, unrepeatable
from monarch.replay.behaviour import watch
from monarch.replay.events import (
    AskedEvent,
    BeginEvent,
    DoneEvent,
    Event,
    OpenedEvent,
    Piece,
    RecordedEvent,
    RecordingError,
    SeedsEvent,
    SentEvent,
    SourcesEvent,
    read,
)
from monarch.replay.player import Divergence, Player, normalise
from monarch.replay.replayer import ReplayDebugging, Replayer, ReplayOver

_PATIENCE = 60.0  # seconds without any progress after which a replay is given up
_NOT_TAKEN = ("MONARCH_", "HYPERACTOR_", "PYTHON")  # of the environment then: they govern this process


@dataclass
class Outcome:
    """The outcome of a replay. `status` is the exit status of `monarch replay`.

    `ended`: what ended it. `messages`: handled. `failure`: the text of what the last failed message raised, or the failure
    of the actor. `divergence`: where it has left its recording, which ends a replay. `notes`: what to know about it.
    """

    messages: int = 0
    ended: str = ""
    failure: str = ""
    divergence: Divergence | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def status(self) -> int:
        """0: as recorded, and nothing failed; 1: the failure came again; 3: it went another way."""
        return 3 if self.divergence is not None else 1 if self.failure else 0


def replay(
    path: str | os.PathLike[str],
    *,
    at: int = 0,
    until_failure: bool = False,
    pdb: bool = False,
    trust: bool = False,
    cls: str = "",
    patience: float = _PATIENCE,
    say: Callable[[str], Any] = print,
) -> Outcome:
    """Replays a recording in this process, and returns how it went.

    `at`: opens pdb in the endpoint that handles message number `at`. `pdb`: opens it where a message fails, or where the
    actor does something else than then. `until_failure`: ends with the first message that fails. `trust`: also a file that
    belongs to somebody else, or that others may write: a recording holds pickles, and decoding one runs what its writer
    wanted. `cls`: the class `module.Name` as it is here instead of the one recorded, to try a correction of it (a class of
    `__main__` is in the recording itself). `patience`: seconds without progress after which it ends. `say` gets lines for
    people.

    RecordingError when the file is no recording, is not to be trusted, or when the class cannot be loaded here.
    """
    with _open(path, trust) as file:
        events = read(file)
        first = next(events, None)
        if first is None or not isinstance(first.event, BeginEvent):
            raise RecordingError(f"{path}: nothing was recorded but the beginning of the file")
        return _Replay(
            first.event, first.pieces, events, ReplayDebugging(at, until_failure, pdb), cls, patience, say
        ).run()


def _open(path: str | os.PathLike[str], trust: bool) -> BinaryIO:
    """Opens the file. RecordingError when others can have written it, or write in its folder, and `trust` is False."""
    if trust:
        return open(path, "rb")
    try:
        return os.fdopen(private_files.open_to_read(path, root=False, closed=True), "rb")
    except private_files.UntrustedFileError as exc:
        raise RecordingError(
            f"{exc}. A recording holds pickles: replaying it runs whatever its writer wanted. If you know where it comes "
            f"from, say --trust (trust=True)"
        ) from None


class _Replay:
    def __init__(
        self,
        begin: BeginEvent,
        pieces: list[bytes],
        events: Iterator[RecordedEvent],
        debugging: ReplayDebugging,
        cls: str,
        patience: float,
        say: Callable[[str], Any],
    ) -> None:
        self._begin = begin
        self._pieces = pieces
        self._events = events
        self._debugging = debugging
        self._cls = cls
        self._patience = patience
        self._say = say
        self._unloadable: RecordingError | None = None

    def run(self) -> Outcome:
        begin, say = self._begin, self._say
        say(f"replaying {begin.cls} {begin.name}[{begin.rank}], recorded on {begin.host}, pid {begin.pid}")
        for difference in environment.differences(begin.facts, begin.modules):
            say(f"  not as then: {difference}")
        if begin.facts.get("folder") != os.getcwd():
            say(f"  not as then: it ran in {begin.facts.get('folder')}; relative names of files mean other files here")
        with _as_then(begin, say):
            return self._run()

    def _run(self) -> Outcome:
        begin = self._begin
        before = home()
        loop = Loop("monarch-replay-io")
        proc = ReplayProc(begin.proc, loop, begin.mesh)
        instance = Instance(
            proc, key=begin.key, name=begin.name, rank=begin.rank, view=begin.view, incarnation=begin.incarnation
        )
        kind: type[ActorBehaviour] = ActorBehaviour
        if begin.loop:
            from monarch._mesh.actors.async_behaviour import AsyncActorBehaviour

            kind = AsyncActorBehaviour
        behaviour = kind(instance, self._load, begin.display, f"{begin.name}-{begin.key}")
        instance.behaviour = behaviour
        player = Player(self._prepared(), not begin.loop, _same, _text)
        self._replayer = replayer = Replayer(instance, player, self._debugging, self._say)
        instance.watcher = replayer
        watch(behaviour)
        proc.add_actor(instance)
        set_home(proc)
        loop.start()
        try:
            self._on_thread(instance, replayer)
        finally:
            set_home(before)
            proc.close(RuntimeError("the replay has ended"))
        return self._outcome(instance, replayer, player)

    def _prepared(self) -> Iterator[RecordedEvent]:
        """The events, without those that only prepare, which are obeyed."""
        for recorded in self._events:
            if isinstance(recorded.event, SeedsEvent):
                environment.restore_rng_state(pickle.loads(recorded.pieces[0]))
            elif isinstance(recorded.event, SourcesEvent):
                for name, text in recorded.event.files.items():
                    self._source(name, text)
            else:
                yield recorded

    def _source(self, name: str, text: str) -> None:
        """The file of the class, for tracebacks and pdb where it is not; and a word when it has changed."""
        try:
            same = Path(name).read_text(encoding="utf-8") == text
        except OSError:
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
            self._say(f"  not as then: there is no {name} here; its lines are shown as they were then")
            return
        if not same:
            self._say(f"  not as then: {name} has changed")

    def _load(self) -> Any:
        try:
            loaded = codec.decode(self._pieces[0], self._pieces[1:])
        except (ImportError, AttributeError) as exc:
            self._unloadable = RecordingError(
                f"the class {self._begin.cls} cannot be loaded here: {exc}. Its module was found by one of "
                f"{', '.join(self._begin.path[:5])}: put it on PYTHONPATH, as it was then"
            )
            raise self._unloadable from exc
        if self._cls:
            loaded = (self._other_class(), *loaded[1:])
        elif loaded[0].__module__ == "__main__":
            self._say("  its class is of __main__, and runs as it was recorded")
        for note in unrepeatable.used_by(loaded[0]):
            self._say(f"  cannot be replayed: {note}")
        return loaded

    def _other_class(self) -> Any:
        module, _, name = self._cls.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as exc:
            self._unloadable = RecordingError(f"there is no class {self._cls} here: {exc}")
            raise self._unloadable from exc
        return found

    def _on_thread(self, instance: Instance, replayer: Replayer) -> None:
        """Runs the actor in this thread, so that pdb has the terminal; in another where an event loop runs here, as in a
        notebook."""
        context = contextvars.copy_context()
        replayer.begin()
        if not _loop_runs_here():
            with replayer.watchdog(self._patience, threading.get_ident()):
                context.run(run, instance)
            return
        thread = threading.Thread(target=context.run, args=(run, instance), name="monarch-replay", daemon=True)
        with replayer.watchdog(self._patience, 0):
            thread.start()
            while thread.is_alive() and not replayer.stuck:
                thread.join(0.1)

    def _outcome(self, instance: Instance, replayer: Replayer, player: Player) -> Outcome:
        failure = replayer.failure
        if self._unloadable is not None:
            raise self._unloadable
        ended = replayer.stopped or player.ended
        if replayer.divergence is None and instance.end is not None and ReplayOver.__name__ in instance.end.report:
            ended = f"{player.ended}{replayer.waited}"
        elif not failure and instance.end is not None and not instance.end.stopped and replayer.divergence is None:
            failure = instance.end.report  # of its constructor, or of what no message waits for
        return Outcome(player.done, ended, failure, replayer.divergence, list(player.notes))


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextlib.contextmanager
def _as_then(begin: BeginEvent, say: Callable[[str], Any]) -> Iterator[None]:
    """The search path and the environment of then, as far as they do not govern this process; put back at the end. A folder
    in which somebody else could put a module is not searched."""
    path, environment = list(sys.path), dict(os.environ)
    for place in begin.path:
        if place not in path and os.path.isdir(place):
            try:
                sys.path.append(private_files.closed_folder(place))
            except OSError as exc:
                say(f"  not as then: modules are not looked for in {place}: {exc}")
    for name, value in begin.environment.items():
        if name not in os.environ and not name.startswith(_NOT_TAKEN):
            os.environ[name] = value
    recorded = settings.LAYERS.runtime()
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        settings.LAYERS.set_runtime(recorded)


_NONE = codec.encode_value(None)[0]


class ReplayProc(Proc):
    """A process in which what its actor spawns seems to start and what it asks seems to be done; nothing is sent."""

    def __init__(self, address: str, loop: Loop, mesh: str) -> None:
        super().__init__(address, loop)
        layer = MeshLayer(self)
        layer.name = mesh

    def post(
        self,
        address: str,
        msg: Any,
        body: bytes = b"",
        buffers: Sequence[memoryview] = (),
        coalesce_within: float = 0.0,
        placement: Any = None,
    ) -> None:
        if isinstance(msg, SpawnProcs):
            for rank in range(msg.first, msg.first + msg.count):
                self._soon(ProcStarted(msg.mesh, rank, self.pid))
        port = getattr(msg, "port", 0)
        if port and not hasattr(msg, "kind"):
            rank = getattr(msg, "index", 0) or getattr(msg, "rank", 0)
            answer = address.encode() if isinstance(msg, StopProcs) else _NONE
            self.loop.call_soon(lambda: self.ports.receive(port, (rank, VALUE, answer, ())))

    def _soon(self, started: ProcStarted) -> None:
        self.loop.call_soon(lambda: self.receivers[ProcStarted](None, started, None))  # type: ignore[arg-type]

    def place(self, addresses: Sequence[str], body: bytes, buffers: Sequence[memoryview], size: int) -> None:
        return None


_VALUE = 200  # characters of one value


def _text(event: Event, pieces: list[Piece]) -> str:
    """Describes what the actor did. Decodes payloads, as `_same` does: only those of a recording that is trusted."""
    if isinstance(event, AskedEvent):
        where = "" if len(event.ranks) != 1 or event.ranks == [0] else f"[{event.ranks[0]}]"
        return f"it called {event.mesh}{where}.{event.method}({_arguments(event, pieces)})"
    if isinstance(event, SentEvent):
        what = "sent" if event.kind == VALUE else "sent the exception"
        return f"it {what} {_value(event.size, pieces)} to a port"
    if isinstance(event, OpenedEvent):
        return "it opened a channel"
    assert isinstance(event, DoneEvent)
    if event.outcome == "raised":
        return f"message {event.number} raised {clip(event.text, _VALUE)}"
    if event.outcome == "nothing":
        return f"message {event.number} ended"
    return f"message {event.number} returned {_value(event.size, pieces)}"


def _same(then: list[Piece], now: list[Piece]) -> bool:
    """True if two payloads mean the same: equal pickles do, and values that look or compare equal."""
    try:
        first, second = codec.decode(then[0], then[1:]), codec.decode(now[0], now[1:])
    except Exception:
        return False
    if normalise(repr(first)) == normalise(repr(second)):
        return True
    try:
        return bool(first == second)
    except Exception:
        return False


def _arguments(event: AskedEvent, pieces: list[Piece]) -> str:
    if not pieces:
        return f"... {event.size} bytes"
    try:
        args, kwargs = codec.decode(pieces[0], pieces[1:])
    except Exception as exc:
        return f"... {event.size} bytes, which cannot be decoded here: {exc}"
    shown = [_short(value) for value in args] + [f"{name}={_short(value)}" for name, value in kwargs.items()]
    return ", ".join(shown)


def _value(size: int, pieces: list[Piece]) -> str:
    if not pieces:
        return f"{size} bytes"
    try:
        return _short(codec.decode(pieces[0], pieces[1:]))
    except Exception:
        return f"{size} bytes"


def _short(value: Any) -> str:
    try:
        return clip(repr(value), _VALUE)
    except Exception:
        return f"<{type(value).__name__}>"
