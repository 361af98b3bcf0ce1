"""Tests of which device a process uses, on a machine whose driver reads the variables once and starts every thread on
device 0."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from monarch._devices import cards, own_device, vendors
from monarch._devices.own_device import Assignment, sharing
from tests._devices.driver import FakeCuda, FakeDriver

ROOT = "[actor=<root>] "  # in front of what is logged in a process with a client
NAMES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@pytest.fixture(autouse=True)
def _process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes this process look as if the process had just begun."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(own_device, "_own", None)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    start = threading.Thread.start
    yield
    threading.Thread.start = start  # type: ignore[method-assign]
    for name in NAMES:
        os.environ.pop(name, None)


class Process:
    """One of a mesh, on a machine with so many cards."""

    def __init__(self, patch: pytest.MonkeyPatch, count: int, assignment: Assignment, kind: str = "cuda") -> None:
        self.cuda = FakeCuda(FakeDriver(count))
        self.told = 0
        torch = types.ModuleType("torch")
        torch.cuda, torch.version = self.cuda, types.SimpleNamespace(hip=None, cuda="13.0")  # type: ignore[attr-defined]
        patch.setitem(sys.modules, "torch", torch)
        patch.setitem(sys.modules, "torch.cuda", self.cuda)
        patch.setattr(cards, "estimate", lambda kind, root=None: count)
        patch.setattr(cards, "uuids", lambda kind, root=None: self.cuda.driver.uuids)
        patch.setattr(vendors, "built_for", lambda: kind)
        self.changed = own_device.begin(assignment, self._everywhere)

    def _everywhere(self) -> None:
        self.told += 1

    def where(self, device: int | None = None) -> int:
        return self.cuda.where(device)


def on_thread(run: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result(60)


@pytest.mark.parametrize(("rank", "cards", "wanted"), [(0, 2, 0), (1, 2, 1), (3, 8, 3), (9, 8, 1), (5, 1, 0)])
def test_a_rank_uses_the_card_of_its_place(monkeypatch: pytest.MonkeyPatch, rank: int, cards: int, wanted: int) -> None:
    process = Process(monkeypatch, cards, Assignment("m", rank, rank + 1))
    assert vendors.count() == cards  # somebody counts first: that settles nothing
    assert process.cuda.driver._seen is None
    assert process.where() == wanted
    assert on_thread(process.where) == wanted
    assert process.where(wanted) == wanted  # cuda:{LOCAL_RANK}
    assert process.cuda.contexts == {wanted}
    assert len(process.cuda.driver.seen) == cards


def test_nothing_is_initialised_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch, 4, Assignment("m", 2, 4))
    own_device.enter()
    assert on_thread(own_device.enter) is None
    assert not process.cuda.is_initialized()
    assert process.cuda.contexts == set()
    assert process.told == 0


def test_the_program_may_still_set_the_variables_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch, 4, Assignment("m", 3, 4))
    os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    assert process.where() == 1
    assert on_thread(process.where) == 1


def test_threads_that_were_there_before_enter_when_they_next_work(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch, 4, Assignment("m", 3, 4))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: None).result(60)
        assert process.where() == 3
        assert process.told == 1

        def work() -> int:
            own_device.enter()
            return process.where()

        assert pool.submit(work).result(60) == 3
    assert process.told == 1


def test_a_device_that_a_thread_has_chosen_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch, 4, Assignment("m", 3, 4))
    process.cuda.set_device(2)
    own_device.enter()
    assert process.where() == 2

    def other() -> int:
        process.cuda.set_device(1)
        own_device.enter()
        return process.where()

    assert on_thread(other) == 1


def test_a_thread_runs_as_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch, 2, Assignment("m", 1, 2))
    process.where()

    class Own(threading.Thread):
        seen = -1

        def run(self) -> None:
            self.seen = process.where()

    thread = Own()
    thread.start()
    thread.join(60)
    assert thread.seen == 1
    assert "run" not in thread.__dict__
    with pytest.raises(RuntimeError, match="once"):
        thread.start()
    assert "run" not in thread.__dict__


def test_a_second_mesh_sees_the_cards_that_are_free_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in range(4):
        with monkeypatch.context() as patch:
            patch.setattr(own_device, "_own", None)
            patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
            process = Process(patch, 8, Assignment("generators", place, 4, first=4, others=(("trainers", 0, 4),)))
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,6,7,0,1,2,3"
            assert process.where() == 4 + place
            process.cuda.set_device(place)  # LOCAL_RANK
            assert process.where() == 4 + place
            assert len(process.cuda.driver.seen) == 8  # the others' memory can be opened
            del os.environ["CUDA_VISIBLE_DEVICES"]


def test_what_was_changed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    process = Process(monkeypatch, 4, Assignment("m", 0, 2, first=2))
    assert process.changed == {"CUDA_VISIBLE_DEVICES": ("0,1,2,3", "2,3,0,1")}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3,0,1"


def test_without_torch_for_devices_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch, 4, Assignment("m", 3, 4, first=1), kind="cpu")
    own_device.enter()
    assert process.where() == 0
    assert process.changed == {}


def test_what_a_variable_names_and_is_not_there_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,7")
    with caplog.at_level(logging.WARNING):
        Process(monkeypatch, 4, Assignment("m", 0, 2))
        Process(monkeypatch, 4, Assignment("m", 1, 2))
    assert [record.message.removeprefix(ROOT) for record in caplog.records] == [
        "CUDA_VISIBLE_DEVICES=0,1,7 names 7, which is no device here (this host has 4): torch sees only the 2 before it"
    ]


# --- sharing


def test_who_shares_a_device_is_said_by_one_of_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        Process(monkeypatch, 2, Assignment("big", 0, 3, rank=3)).where()
        own_device._own = None
        Process(monkeypatch, 2, Assignment("big", 1, 3, rank=3)).where()
    (record,) = caplog.records
    assert record.message.removeprefix(ROOT).startswith(
        "mesh 'big' has 3 processes on this host, which has 2 devices: rank 3 and rank 5 share device 0. They share"
    )


def test_meshes_that_share_are_named() -> None:
    assert sharing(Assignment("b", 0, 2, first=2, others=(("a", 0, 2),)), 4) == ""
    said = sharing(Assignment("b", 0, 2, first=3, others=(("a", 0, 3),)), 4)
    assert "rank 1 and mesh 'a' share device 0." in said
    assert sharing(Assignment("b", 0, 1), 1) == ""
    assert "and 8 more devices are shared" in sharing(Assignment("b", 0, 16, first=16, others=(("a", 0, 16),)), 16)


# --- the import of torch


def test_a_module_that_comes_later_is_noticed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "comes_later_for_devices.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[Any] = []
    own_device.when_loaded("comes_later_for_devices", lambda module: seen.append(module.value))
    assert importlib.util.find_spec("comes_later_for_devices") is not None  # to look is not to load
    assert seen == []
    module = importlib.import_module("comes_later_for_devices")
    assert seen == [1]
    assert not any(isinstance(finder, own_device._Finder) for finder in sys.meta_path)
    own_device.when_loaded("comes_later_for_devices", lambda module: seen.append(2))
    assert seen == [1, 2]
    assert module.__spec__ is not None
    del sys.modules["comes_later_for_devices"]


def test_a_module_that_is_not_there_is_not_there() -> None:
    own_device.when_loaded("is_never_there_for_devices", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("is_never_there_for_devices")


def test_torch_has_what_is_used_of_it() -> None:
    cuda: Any = pytest.importorskip("torch").cuda
    calls: list[int] = []
    before = len(cuda._queued_calls)
    cuda._lazy_call(lambda: calls.append(1))
    if cuda.is_initialized():
        assert calls == [1]
    else:
        assert calls == []
        assert len(cuda._queued_calls) == before + 1
        cuda._queued_calls.pop()
    assert all(callable(getattr(cuda, name)) for name in ("device_count", "current_device", "set_device", "init"))


def test_who_is_about_to_use_it_finds_it_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's DeviceMesh, for one, takes the device of LOCAL_RANK where none is in use: in a slice that is another."""
    process = Process(monkeypatch, 8, Assignment("m", 5, 8))
    own_device.start()
    assert process.cuda.is_initialized()
    assert process.where() == 5


def test_a_process_that_nobody_assigned_one_is_told_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch, 4, Assignment("m", 0, 1))
    own_device._own = None
    own_device.use(2, process._everywhere)
    own_device.use(3)  # the first one counts
    assert process.where() == 2
    assert process.told == 1
