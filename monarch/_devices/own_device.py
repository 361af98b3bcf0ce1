"""The devices that a process uses: decided when the process starts, carried out when torch begins to use devices.

A process of a mesh uses the device of its place among the mesh's processes on the host, which is its LOCAL_RANK: as torch's
*current* device, on every thread. All devices stay visible, in the same order for the whole mesh. So `cuda`, `.cuda()`,
`torch.cuda.set_device(LOCAL_RANK)` and `cuda:{LOCAL_RANK}` mean the same device, and the memory of others can be opened.
To hide the others instead, as CUDA_VISIBLE_DEVICES=<one> would, breaks what names its device by LOCAL_RANK.

A mesh that is started while others have devices of the host sees the devices in another order, those that are free first:
the visible-devices variables are set at the start of the process, before anything asks the driver, which reads them once.

torch has a current device for each thread, and the driver starts each with device 0. So it is set

- on the thread that initialises torch's devices, as the last step of that (`torch.cuda._lazy_call`): nothing is initialised
  for it, so a process that uses no device pays nothing, and a program may still set the variables itself before that;
- on the threads of actors before their next message, on threads of this package when they next work;
- on every thread that starts later.

That leaves a thread which is in the middle of a call while another one of its process uses a device for the first time:
for that call it stays on device 0. A device that a thread has chosen by itself is left alone.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from monarch._devices import cards, vendors, visible

logger = logging.getLogger("monarch")
_TOLD = 8  # devices whose users a warning names


class Assignment(NamedTuple):
    """The decision of the host. Processes of meshes take slots of the host; a slot is a device, several where there are
    more slots than devices. `first`: the slot of the mesh's first process here, which is its rank `rank`; `place`: which of
    its `processes` here this is. `others`: (mesh, first slot, processes) of those that have slots as well.
    """

    mesh: str
    place: int
    processes: int
    first: int = 0
    rank: int = 0
    others: tuple[tuple[str, int, int], ...] = ()


def sharing(assignment: Assignment, count: int) -> str:
    """Returns who shares a device with whom, for a warning; "" when every process of the mesh has one to itself."""
    users: dict[int, list[str]] = {}
    for place in range(assignment.processes):
        users.setdefault((assignment.first + place) % count, []).append(f"rank {assignment.rank + place}")
    own = set(users)
    for mesh, first, processes in assignment.others:
        for slot in range(first, first + min(processes, count)):
            if slot % count in own:
                users[slot % count].append(f"mesh {mesh!r}")
    shared = {device: who for device, who in sorted(users.items()) if len(who) > 1}
    if not shared:
        return ""
    told = [f"{_listed(who)} share device {device}" for device, who in list(shared.items())[:_TOLD]]
    more = f", and {len(shared) - _TOLD} more devices are shared" if len(shared) > _TOLD else ""
    return (
        f"mesh {assignment.mesh!r} has {assignment.processes} process{'es' * (assignment.processes != 1)} on this host, "
        f"which has {count} device{'s' * (count != 1)}: {'; '.join(told)}{more}. They share its memory, and nccl refuses two "
        f"ranks on one device. Spawn fewer processes, stop the other mesh, or say which devices to use: "
        f"spawn_procs(env={{'CUDA_VISIBLE_DEVICES': ...}})"
    )


def _listed(who: Sequence[str]) -> str:
    return f"{', '.join(who[:-1])} and {who[-1]}"


class OwnDevice:
    """The device of this process. `everywhere`: see to it that `enter` is called on the threads of actors."""

    def __init__(self, assignment: Assignment, everywhere: Callable[[], None] = lambda: None) -> None:
        self.assignment = assignment
        self.index = 0  # of the device, once torch uses devices; 0 is what threads have by themselves
        self._everywhere = everywhere
        self._cuda: Any = None
        self._thread = threading.local()
        self._failed = False

    def watch(self, cuda: Any) -> None:
        """Runs once torch.cuda is loaded."""
        self._cuda = cuda
        cuda._lazy_call(self._initialised)

    def _initialised(self) -> None:
        """torch has initialised its devices, on this thread. Must not raise: the program's first use of a device would."""
        try:
            count = int(self._cuda.device_count())
            if count < 1:
                return
            if not self.assignment.place:
                said = sharing(self.assignment, count)
                if said:
                    logger.warning("%s", said)
            self.index = self.assignment.place % count
            if self.index:
                self.enter()
                enter_on_new_threads(self.enter)
                self._everywhere()
        except Exception:
            logger.exception(
                "the device of this process could not be chosen; it uses device 0 unless it says otherwise"
            )

    def enter(self) -> None:
        """This thread uses the device from here on, unless it has chosen one. Cheap when there is nothing to do."""
        if self.index and not hasattr(self._thread, "entered"):
            self._thread.entered = True
            try:
                if self._cuda.current_device() == 0:
                    self._cuda.set_device(self.index)
            except Exception as exc:
                if not self._failed:
                    self._failed = True
                    logger.warning("device %d cannot be used, which is this process's: %s", self.index, exc)


_own: OwnDevice | None = None


def begin(assignment: Assignment, everywhere: Callable[[], None] = lambda: None) -> dict[str, tuple[str | None, str]]:
    """Once, at the start of a process, before torch uses devices. Nothing without torch for devices. The variables that it
    has set, with what they were and are."""
    global _own
    changed: dict[str, tuple[str | None, str]] = {}
    kind = vendors.built_for()
    if kind == "cpu":
        return changed
    if not assignment.place and any(name in os.environ for name in visible.VARIABLES[kind]):
        here = [""] * cards.estimate(kind) if kind == "cuda" else cards.uuids(kind)  # NVML may take seconds
        said = visible.problem(kind, os.environ, here)
        if said:
            logger.warning("%s", said)
    if assignment.first:
        for name, text in visible.rotated(kind, os.environ, cards.uuids(kind), assignment.first).items():
            changed[name] = os.environ.get(name), text
            os.environ[name] = text
    _own = OwnDevice(assignment, everywhere)
    when_loaded("torch.cuda", _own.watch)
    return changed


def use(place: int, everywhere: Callable[[], None] = lambda: None) -> None:
    """Assigns, for a process that nobody has assigned a device, that of `place`, from when torch uses devices."""
    if _own is None:
        begin(Assignment("", place, place + 1), everywhere)


def enter() -> None:
    """The calling thread uses this process's device, if torch uses devices by now. For threads that start early and work
    on devices; cheap."""
    if _own is not None:
        _own.enter()


def index() -> int:
    """Returns the number of this process's device; 0 for one that nobody has assigned one."""
    return 0 if _own is None else _own.index


def start() -> None:
    """The calling thread is about to use devices: torch initialises them, if there are any, and this process's is in use.
    Libraries that choose a device by themselves, until one is in use, find it. Imports torch."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.init()
        enter()


# --- moments at which something is done


def enter_on_new_threads(run: Callable[[], None]) -> None:
    """`run()` first on every thread that starts from here on by `threading`, which is how pools and event loops start
    theirs. `run` must not raise."""
    start = threading.Thread.start

    @functools.wraps(start)
    def begun(self: threading.Thread) -> None:
        own = self.run

        def entered() -> None:
            self.__dict__.pop("run", None)  # or the thread would keep itself alive
            run()
            own()

        self.run = entered  # type: ignore[method-assign]
        try:
            start(self)
        except BaseException:
            self.__dict__.pop("run", None)
            raise

    threading.Thread.start = begun  # type: ignore[method-assign]


def when_loaded(name: str, run: Callable[[ModuleType], None]) -> None:
    """`run(module)` when the module has been imported; now if it has been."""
    module = sys.modules.get(name)
    if module is not None:
        run(module)
    else:
        sys.meta_path.insert(0, _Finder(name, run))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the others would, once, and has something done when it is loaded."""

    def __init__(self, name: str, run: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._run = run

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        others = (finder for finder in list(sys.meta_path) if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._run(module)

        loader.exec_module = exec_module
        return spec
