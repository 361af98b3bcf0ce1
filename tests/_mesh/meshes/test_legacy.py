from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from monarch._mesh.meshes import legacy


class Host:
    def __init__(self) -> None:
        self.asked: list[tuple[Any, dict[str, Any]]] = []

    def spawn_procs(self, per_host: Any, **options: Any) -> str:
        self.asked.append((per_host, options))
        return "a proc mesh"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host()
    monkeypatch.setattr(legacy, "this_host", lambda: host)
    return host


def torch_with(available: bool, count: int) -> Any:
    return SimpleNamespace(accelerator=SimpleNamespace(is_available=lambda: available, device_count=lambda: count))


@pytest.mark.parametrize(
    ("torch", "count"),
    [
        (None, 1),
        (SimpleNamespace(), 1),  # a torch without accelerators, or still being imported
        (torch_with(False, 0), 1),
        (torch_with(True, 4), 4),
        (torch_with(True, 0), 1),
    ],
)
def test_one_process_an_accelerator_and_at_least_one(
    host: Host, monkeypatch: pytest.MonkeyPatch, torch: Any, count: int
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    legacy.proc_mesh()
    legacy.local_proc_mesh()
    assert [per_host for per_host, _ in host.asked] == [{"hosts": 1, "gpus": count}] * 2


def test_size_environment_and_setup_are_passed_on(host: Host) -> None:
    def setup() -> None: ...

    assert legacy.proc_mesh(gpus=2, hosts=3, env={"A": "1"}, setup=setup) == "a proc mesh"
    assert legacy.local_proc_mesh(gpus=0) == "a proc mesh"
    assert host.asked == [
        ({"hosts": 3, "gpus": 2}, {"bootstrap": setup, "env": {"A": "1"}}),
        ({"hosts": 1, "gpus": 0}, {"bootstrap": None, "env": None}),
    ]
