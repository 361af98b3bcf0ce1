"""An engine's life with real processes: killed workers, restarts, Ctrl-C, exit, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiers import full

torch = pytest.importorskip("torch")

import monarch  # noqa: E402
from monarch.actor import ProcMesh, SupervisionError, this_host  # noqa: E402
from monarch.tensor import RemoteException  # noqa: E402
from monarch.tensor.controller.engine import EngineEnded  # noqa: E402
from monarch.tensor.controller.engines import spawn_tensor_engine  # noqa: E402

pytestmark = pytest.mark.procs
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def procs() -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs({"gpus": 2})
    yield mesh
    mesh.stop().get(timeout=300)


pid = monarch.remote(os.getpid, propagate="inspect")


def test_a_killed_process_ends_one_fetch_and_the_mesh_goes_on_after_a_restart(procs: ProcMesh) -> None:
    with procs.activate():
        x = torch.ones(3)
        victim = pid.call().get().item(gpus=1)
        block = monarch.remote(_wait_for_ever, propagate=lambda t: t.clone())
        future = monarch.fetch_shard(block(x))
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(SupervisionError) as told:
            future.get(timeout=300)
        assert isinstance(told.value, EngineEnded)
        assert "Killed(sig=9)" in str(told.value)
        assert "procs.restart" in str(told.value)
        with pytest.raises(EngineEnded, match="sig=9"):
            x + 1
        with pytest.raises(EngineEnded):
            monarch.inspect(x)
    procs.restart(failed=True).get(timeout=300)
    with procs.activate() as mesh:
        assert mesh.size() == 2
        assert monarch.inspect(torch.ones(3) * 2, gpus=1).tolist() == [2.0, 2.0, 2.0]
        with pytest.raises(EngineEnded):
            monarch.inspect(x)
        again = pid.call().get()
        assert again.item(gpus=1) != victim


def _wait_for_ever(t: Any) -> Any:
    threading.Event().wait()
    return t


@full
def test_ctrl_c_leaves_the_engine_usable(tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(
        textwrap.dedent("""
        import os, signal, threading
        import torch
        import monarch
        from monarch.actor import this_host

        def work(until):
            while True:
                w = torch.ones(4)
                for i in range(150):
                    w = w + 1
                    w[1:].mul_(1)
                monarch.inspect(w)
                until()

        def main():
            procs = this_host().spawn_procs({"gpus": 2})
            with procs.activate():
                for turn in range(15):
                    rounds = iter(range(turn % 3))
                    begun = threading.Event()
                    def interrupt():
                        begun.wait()
                        os.kill(os.getpid(), signal.SIGINT)
                    thread = threading.Thread(target=interrupt)
                    thread.start()
                    def until():
                        if next(rounds, None) is None:
                            begun.set()
                    try:
                        work(until)
                    except KeyboardInterrupt:
                        pass
                    thread.join()
                    w = torch.ones(4)
                    for i in range(150):
                        w = w + 1
                    assert monarch.inspect(w).tolist() == [151.0] * 4, turn
            procs.stop().get()
            print("usable")

        if __name__ == "__main__":
            signal.signal(signal.SIGINT, signal.default_int_handler)
            main()
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "usable"
    assert not done.stderr.strip(), done.stderr


def test_exit_tells_of_a_failure_that_nobody_fetched(procs: ProcMesh) -> None:
    mesh = spawn_tensor_engine(procs)
    with mesh.activate():
        torch.zeros(2)[torch.tensor([5])]  # fails in the workers
    with pytest.raises(RemoteException, match="index 5 is out of bounds") as told:
        mesh.exit()
    assert "torch.tensor([5])" in (told.value.controller_frames[-1].line or "")
    mesh.exit()  # once


@full
@pytest.mark.parametrize("end", ["procs.stop().get()", "pass"])
def test_the_end_of_a_program_tells_of_a_failure_that_nobody_fetched(end: str, tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text(
        textwrap.dedent(f"""
        import torch
        import monarch
        from monarch.actor import this_host

        if __name__ == "__main__":
            procs = this_host().spawn_procs({{"gpus": 2}})
            with procs.activate():
                lost = torch.zeros(2)[torch.tensor([5])]
                monarch.remote(int, propagate="inspect").call().get()
            {end}
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0 and not done.stdout, done.stdout + done.stderr
    assert done.stderr.count("index 5 is out of bounds") == 1, done.stderr
    assert "lost = torch.zeros(2)[torch.tensor([5])]" in done.stderr
    assert "its processes were stopped" in done.stderr


def test_exit_says_nothing_of_what_was_fetched(procs: ProcMesh) -> None:
    mesh = spawn_tensor_engine(procs)
    with mesh.activate():
        wrong = torch.zeros(2)[torch.tensor([5])]
        fine = torch.ones(2)
        for _ in range(2):
            with pytest.raises(RemoteException, match="index 5 is out of bounds"):
                monarch.inspect(wrong + 1)
        assert monarch.inspect(fine).tolist() == [1.0, 1.0]
    mesh.exit()


def test_two_engines_on_one_mesh_do_not_meet(procs: ProcMesh) -> None:
    one, two = spawn_tensor_engine(procs), spawn_tensor_engine(procs)
    with one.activate():
        x = torch.ones(2)
    with two.activate():
        y = torch.ones(2) * 2
        with pytest.raises(TypeError, match="WRONG_MESH"):
            y + x
        assert monarch.inspect(y).tolist() == [2.0, 2.0]
    one.exit()
    with two.activate():
        assert monarch.inspect(y + 1).tolist() == [3.0, 3.0]
    two.exit()


def test_a_slice_starts_the_engine_of_the_whole(procs: ProcMesh) -> None:
    with procs.slice(gpus=1).activate() as part:
        x = torch.ones(2)
        assert len(x.mesh) == 1
        assert part.names == ()
        assert monarch.inspect(x).tolist() == [1.0, 1.0]
    with procs.activate() as whole:
        assert whole.client is part.client
        assert monarch.inspect(torch.ones(1), gpus=0).tolist() == [1.0]


@full
def test_a_program_far_ahead_waits_and_memory_stays_flat(procs: ProcMesh) -> None:
    with procs.activate() as mesh:
        engine = mesh.client
        x = w = torch.ones(8)
        for _ in range(15_000):
            w = w * 0.5 + x
        assert len(engine._acks) <= 4
        assert len(engine._unsent) == 0
        assert len(engine.entries) < 10
        assert monarch.inspect(w).tolist() == [2.0] * 8
        table = monarch.remote(_living, propagate="inspect")
        w = w + 0
        engine.sync()
        assert table.call().get().item(gpus=0) <= 6


def _living() -> int:
    from monarch.tensor.worker import current

    return len(current.worker().executor.tensors)


@full
def test_a_program_that_ends_without_exit_ends_quietly(tmp_path: Path) -> None:
    script = tmp_path / "quiet.py"
    script.write_text(
        textwrap.dedent("""
        import torch
        from monarch.actor import this_host

        if __name__ == "__main__":
            procs = this_host().spawn_procs({"gpus": 2})
            with procs.activate():
                x = torch.ones(100, 100)
                for _ in range(2000):
                    x = x @ x * 0
            print("done")
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr.strip()) == (0, "done", "")


@pytest.mark.slow
def test_a_million_operations_leave_nothing(procs: ProcMesh) -> None:
    """Memory here and in the workers is what it was after the first hundred thousand."""
    with procs.activate() as mesh:
        rss = monarch.remote(_memory, propagate="inspect")
        x = w = torch.ones(8)
        before: list[float] = []
        for turn in range(10):
            for _ in range(25_000):
                w = w * 0.5 + x
                v = w.view(2, 4)
                v.add_(0.0)
            del v
            mesh.client.sync()
            held = [_memory(), *rss.call().get().values()]
            if turn == 1:
                before = held
        assert all(now < 1.02 * then + 2e6 for now, then in zip(held, before, strict=True)), (before, held)
        assert monarch.inspect(w).tolist() == [2.0] * 8


def _memory() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096.0
