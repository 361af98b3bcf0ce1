"""The processes of a mesh as ranks for torch.distributed: the public function; `monarch.spmd` has what it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from monarch._mesh import plugins
from monarch._mesh.meshes.proc_mesh import ProcMesh
from monarch._runtime.context import here
from monarch._runtime.future import Future


def setup_torch_distributed(
    procs: ProcMesh,
    backend: str | None = None,
    *,
    init: bool = True,
    timeout: float | None = None,
    threads: int | None = None,
    setup_timeout: float = 120.0,
    on_death: Literal["abort", "wait"] = "abort",
) -> Future[None]:
    """Makes the processes of a mesh, or of a slice of one, the ranks of a torch.distributed process group.

    In each process: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT and the other
    variables that torchrun sets; with GPUs, torch's current device on the threads of all its actors; torch's `threads`, where
    given. Then `init_process_group`, unless `init` is false: a program does that itself then, as under torchrun.

    `backend`: as torch names it; None is nccl where every rank has a GPU of its own, else gloo. `timeout`: seconds that a
    collective waits, torch's own default when None. Ranks are those of `procs`. The ranks meet at a port that the first one
    opens, on the loopback interface when all are on one host.

    Begins at once, when the processes are up; the Future resolves when every rank is in the group. May be called again, after
    restarts or for another slice: a group that a process is in is ended first. Any number of groups of different processes
    may be set up at once; a process is in one at a time.

    `on_death`: with "abort", when the process of a rank dies, collectives of all others end within about a second with an
    error that names that rank: those of every torch group of their processes, in backward passes too, and the making of
    groups. With "wait" they end when torch ends them: at a broken connection, or after `timeout`.

    Called again, it first ends the collectives that a rank is still in. The process of a rank that cannot leave them is
    killed, to be restarted by the policy of its actors, and a warning says which and what it is in.

    The Future raises SupervisionError when a process ends meanwhile (call again when it is back: `healthy()`), and
    RuntimeError that says which rank could not reach whom, or was not done within `setup_timeout` seconds; then no rank is in
    the group or waits for it. TypeError, ValueError for arguments that cannot be.
    """
    if not isinstance(procs, ProcMesh):
        raise TypeError(
            f"setup_torch_distributed takes processes, a ProcMesh or a slice of one, and got {type(procs).__name__}: give "
            f"what spawn_procs() returned"
        )
    for name, seconds in (("timeout", timeout), ("setup_timeout", setup_timeout)):
        if seconds is not None and not 0 < seconds < float("inf"):
            raise ValueError(f"{name} must be a finite number of seconds above 0, got {seconds!r}")
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be 1 or more, got {threads!r}")
    if on_death not in ("abort", "wait"):
        raise ValueError(f"on_death must be 'abort' or 'wait', got {on_death!r}")
    procs._train()
    done: Future[None] = plugins.outer("spmd.setup")(
        procs, procs._places(), backend, init, timeout, threads, setup_timeout, on_death
    )
    return done


def on_actor_threads(name: str, run: Callable[[], None]) -> None:
    """`run()` on the thread of each actor of this process, before its next message, and of each that is spawned later, before
    its constructor. For optional packages. Another one of the same name takes its place. `run` must not raise."""
    proc: Any = here()
    proc.actor_threads.add(name, run)
