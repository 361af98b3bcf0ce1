"""Logging, random numbers, timing and profiling in the workers, and the public paths under which programs find them."""

from __future__ import annotations

import importlib
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import monarch
from monarch.builtins import (
    get_rng_state_all_cuda_remote,
    get_rng_state_remote,
    log_remote,
    manual_seed_all_cuda_remote,
    manual_seed_cuda_remote,
    random_seed_remote,
    seed_remote,
    set_logging_level_remote,
    set_manual_seed_remote,
    set_rng_state_all_cuda_remote,
    set_rng_state_remote,
)
from monarch.tensor import RemoteException, inspect
from monarch.tensor.remote.remote_function import call_on_shard_and_fetch, remote
from monarch.timer import (
    ExecutionTimer,
    execution_timer_start,
    execution_timer_stop,
    get_execution_timer_average_ms,
    get_latest_timer_measurement,
)


def test_the_module_paths_programs_know() -> None:
    for path, names in {
        "builtins": ["log_remote"],
        "builtins.random": ["set_manual_seed_remote"],
        "builtins.log": ["set_logging_level_remote"],
        "timer": ["ExecutionTimer"],
        "profiler": ["profile", "record_function", "Schedule"],
        "memory": [
            "record_memory_history",
            "dump_memory_snapshot",
            "DeviceMemory",
            "device_memory",
            "reset_peak_memory",
        ],
        "opaque_object": ["OpaqueObject", "opaque_method"],
        "opaque_module": ["OpaqueModule"],
        "cached_remote_function": ["remote_autograd_function"],
        "remote_class": ["ControllerRemoteClass", "WorkerRemoteClass"],
        "fetch": ["fetch_shard", "inspect", "show", "call_on_shard_and_fetch"],
        "mesh_controller": ["RemoteException", "spawn_tensor_engine"],
        "safe_torch": ["torch"],
    }.items():
        module = importlib.import_module(f"monarch.{path}")
        assert all(hasattr(module, name) for name in names), path
    assert monarch.timer.ExecutionTimer is ExecutionTimer
    assert monarch.builtins.log_remote is log_remote
    assert monarch.remote is remote and monarch.OpaqueRef is not None


def test_importing_the_package_loads_no_torch() -> None:
    program = "import sys, monarch; monarch.Extent; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False"]


# --- without processes


def test_logging(loop: Any, caplog: pytest.LogCaptureFixture) -> None:
    before = logging.getLogger().level
    try:
        with caplog.at_level(logging.INFO, logger="monarch.remote"):
            log_remote("step %d of %s", 3, "many", level=logging.ERROR)
            log_remote("a warning")
            loop.client.flush()
        # A process that has been a client puts the actor in front.
        told = [(record.levelno, record.getMessage().removeprefix("[actor=<root>] ")) for record in caplog.records]
        assert told == [(logging.ERROR, "step 3 of many"), (logging.WARNING, "a warning")] * 2
        set_logging_level_remote(logging.CRITICAL)
        loop.client.flush()
        assert logging.getLogger("monarch.remote").level == logging.CRITICAL
    finally:
        logging.getLogger().setLevel(before)
        logging.getLogger("monarch.remote").setLevel(logging.NOTSET)


def test_the_logger_of_the_module_is_the_one_that_is_used(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[Any, ...]] = []
    before = logging.getLogger().level

    class Logger:
        def log(self, level: int, *args: Any) -> None:
            used.append((level, *args))

        def setLevel(self, level: int) -> None:
            used.append((level,))

    assert isinstance(monarch.builtins.log.logger, logging.Logger)
    monkeypatch.setattr(monarch.builtins.log, "logger", Logger())
    try:
        log_remote("step %d", 3, level=logging.ERROR)
        set_logging_level_remote(logging.INFO)
        loop.client.flush()
    finally:
        logging.getLogger().setLevel(before)
    assert used == [(logging.ERROR, "step %d", 3), (logging.INFO,)] * 2


def test_timers(loop: Any) -> None:
    ExecutionTimer.reset()
    for _ in range(2):
        with ExecutionTimer.time("here", use_cpu=True):
            pass
    summary = ExecutionTimer.summary()["here"]
    assert set(summary) == {"count", "mean_ms", "total_ms", "min_ms", "max_ms"}
    assert summary["count"] == 2 and 0 <= summary["min_ms"] <= summary["mean_ms"] <= summary["max_ms"]
    assert ExecutionTimer.get_latest_measurement("nothing") == 0.0
    with pytest.raises(ValueError, match="is not running"):
        ExecutionTimer.stop("nothing")
    ExecutionTimer.start("twice", use_cpu=True)
    with pytest.raises(ValueError, match="is already running"):
        ExecutionTimer.start("twice")
    ExecutionTimer.reset()
    assert ExecutionTimer.summary() == {}


# --- in processes


def test_seeds_and_states(mesh: Any) -> None:
    def drawn() -> list[Any]:
        values = torch.rand(3)
        return [inspect(values, gpus=rank).tolist() for rank in range(2)]

    set_manual_seed_remote(12345)
    first = drawn()
    assert first[0] == first[1]
    state = get_rng_state_remote()
    second = drawn()
    set_rng_state_remote(state)
    assert drawn() == second != first
    set_manual_seed_remote(12345, process_idx=mesh.process_idx())
    own = drawn()
    assert own[0] == first[0] != own[1]
    seed_remote()
    again = drawn()
    assert again[0] != again[1]
    random_seed_remote()
    manual_seed_cuda_remote(1)
    manual_seed_all_cuda_remote(1)
    states = get_rng_state_all_cuda_remote()
    set_rng_state_all_cuda_remote(states)
    inspect(torch.ones(1))
    set_manual_seed_remote(12345)
    assert drawn() == first


def test_timers_in_the_workers(mesh: Any) -> None:
    for _ in range(2):
        execution_timer_start("step", use_cpu=True)
        torch.ones(4).add(1)
        execution_timer_stop("step")
    mean, latest = get_execution_timer_average_ms("step"), get_latest_timer_measurement("step")
    assert mean.dtype == torch.float64 and mean.shape == ()
    assert inspect(mean).item() > 0 and inspect(latest).item() > 0
    assert inspect(get_latest_timer_measurement("other")).item() == 0.0
    counted = remote(lambda: ExecutionTimer.summary()["step"]["count"])
    assert call_on_shard_and_fetch(counted, shard={"gpus": 1}).get() == 2


def test_a_trace_a_process(mesh: Any, tmp_path: Path) -> None:
    from monarch.profiler import profile, record_function

    with profile(on_trace_ready=str(tmp_path / "traces")) as profiler:
        with record_function("my region"):
            x = torch.ones(16, 16) @ torch.ones(16, 16)
        profiler.step()
    inspect(x)
    for rank in range(2):
        inspect(torch.ones(1), gpus=rank)
        trace = json.loads((tmp_path / "traces" / f"trace_{rank}.json").read_text())
        names = {event.get("name") for event in trace["traceEvents"]}
        assert "my region" in names and "aten::mm" in names


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")
def test_memory_history_needs_a_device(procs: Any, tmp_path: Path) -> None:
    from monarch.memory import dump_memory_snapshot, record_memory_history
    from monarch.mesh_controller import spawn_tensor_engine

    mesh = spawn_tensor_engine(procs)
    with mesh.activate():
        record_memory_history()
        dump_memory_snapshot(dir_snapshots=str(tmp_path))
    with pytest.raises(RemoteException, match="CUDA and ROCm"):
        mesh.exit()
