"""Tests of what differs between releases of torch: each older way beside the newer one, on whichever torch is here."""

from __future__ import annotations

import ast
import importlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.utils import _pytree as pytree

from monarch._devices import torch_versions
from monarch.tensor.worker import reductions

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "monarch"

# Private names of torch that a supported release lacks, and what is done there. Releases 2.8, 2.13 and 2.14 have all others.
NOT_EVERYWHERE = {
    "torch.distributed.distributed_c10d._register_pg_in_world": "torch_versions.register_group",
}


@pytest.mark.parametrize(
    ("version", "wanted"),
    [("2.6.0+cu124", (2, 6)), ("2.14.1", (2, 14)), ("2.15.0.dev20261101+cpu", (2, 15)), ("2.6.0a0+gitunknown", (2, 6))],
)
def test_the_release_of_a_version(version: str, wanted: tuple[int, int]) -> None:
    assert torch_versions.release(version) == wanted


def test_an_older_torch_is_refused_where_it_is_first_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.7.1+cpu")
    with pytest.raises(
        ImportError,
        match=r"^torch 2.7.1\+cpu is too old: .* 2\.8 or newer, here and .*host .*: pip install 'torch>=2\.8'",
    ):
        importlib.reload(torch_versions)
    monkeypatch.undo()
    importlib.reload(torch_versions)


def test_the_extra_asks_for_the_oldest() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["torch"] == ["torch>={}.{}".format(*torch_versions.OLDEST)]


def test_the_children_of_a_spec() -> None:
    spec = pytree.tree_structure((1, [2, 3]))
    assert [child.num_leaves for child in torch_versions.children(spec)] == [1, 2]
    older: Any = SimpleNamespace(children_specs=["a", "b"])
    assert torch_versions.children(older) == ["a", "b"]


@pytest.mark.parametrize("older", [False, True])
def test_a_group_is_known_by_its_name(older: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if older:
        monkeypatch.delattr(c10d, "_register_pg_in_world", raising=False)
    store = dist.HashStore()
    group = dist.ProcessGroup(store, 0, 1)
    torch_versions.register_group(group, "gloo", store, "a group", "cpu:gloo", {0: 0})
    try:
        world = c10d._world
        assert world.pg_map[group] == ("gloo", store)
        assert world.pg_names[group] == "a group"
        assert world.pg_backend_config[group] == "cpu:gloo"
        assert world.pg_group_ranks[group] == {0: 0}
        assert world.tags_to_pg["ptd:a group"] == [group]
        assert world.pg_to_tag[group] == "ptd:a group"
        assert c10d._resolve_process_group("a group") is group
    finally:
        c10d._unregister_process_group("a group")
        for table in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_group_ranks, world.pg_to_tag):
            table.pop(group)
        del world.tags_to_pg["ptd:a group"]


class _Gloo:
    """A backend of two ranks, of which this is the second; its reduce-scatter sums, whatever it is asked for."""

    def __init__(self, other: torch.Tensor) -> None:
        self._other = other

    def rank(self) -> int:
        return 1

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Any:
        combine = torch.mul if options.reduceOp == dist.ReduceOp.PRODUCT else torch.add
        tensors[0].copy_(combine(tensors[0], self._other.view(-1)))
        return SimpleNamespace(wait=lambda: None)

    def _reduce_scatter_base(self, part: torch.Tensor, flat: torch.Tensor, options: Any) -> Any:
        part.copy_((flat + self._other.view(-1)).view(2, -1)[1])
        return SimpleNamespace(wait=lambda: None)


@pytest.mark.parametrize(("reduction", "wanted"), [("product", [21.0, 32.0]), ("sum", [10.0, 12.0])])
def test_a_gloo_that_only_sums_is_not_asked_for_more(
    reduction: str, wanted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.8.0")
    mine = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    backend = _Gloo(torch.tensor([[5.0, 6.0], [7.0, 8.0]]))
    assert reductions.reduce_scatter(backend, mine, reduction, 2).tolist() == wanted
    assert mine.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_which_reductions_are_scattered(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = torch.zeros(2), torch.zeros(2, device="meta")
    for version, product in [("2.8.0+cpu", False), ("2.13.0", True), ("2.14.1", True)]:
        monkeypatch.setattr(torch, "__version__", version)
        assert torch_versions.scatters(here, dist.ReduceOp.PRODUCT) is product
        assert torch_versions.scatters(here, dist.ReduceOp.SUM)
        assert torch_versions.scatters(there, dist.ReduceOp.MAX)


# --- private names


def private_names(source: str) -> Iterator[str]:
    """Each name of torch in the source that has a private part."""
    tree = ast.parse(source)
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "torch":
                    known[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch" and not node.level:
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    named = [*known.values()]
    for node in ast.walk(tree):
        parts: list[str] = []
        owner = node
        while isinstance(owner, ast.Attribute):
            parts.append(owner.attr)
            owner = owner.value
        if parts and isinstance(owner, ast.Name) and owner.id in known:
            named.append(".".join([known[owner.id], *reversed(parts)]))
    for name in named:
        if any(part.startswith("_") and not part.startswith("__") for part in name.split(".")):
            yield name


def is_there(name: str) -> bool:
    found: Any = torch
    walked = "torch"
    for part in name.split(".")[1:]:
        walked += f".{part}"
        if not hasattr(found, part):
            try:
                importlib.import_module(walked)
            except ImportError:
                return False
        found = getattr(found, part)
    return True


def test_every_private_name_is_there() -> None:
    """On every release of torch that the tests are run on: what one lacks has to be in torch_versions."""
    names = {
        name
        for path in PACKAGE.rglob("*.py")
        if "torch" in (source := path.read_text())
        for name in private_names(source)
    }
    assert len(names) > 50
    assert sorted(name for name in names - NOT_EVERYWHERE.keys() if not is_there(name)) == []
    assert names >= NOT_EVERYWHERE.keys()


def test_private_names_are_found() -> None:
    source = (
        "import torch\nfrom torch.distributed import distributed_c10d as c10d\ntorch._C._x(torch.nn)\nc10d._world.a"
    )
    assert set(private_names(source)) == {
        "torch._C._x", "torch._C", "torch.distributed.distributed_c10d._world.a", "torch.distributed.distributed_c10d._world",
    }  # fmt: skip
    assert not is_there("torch._C._such_a_name_is_nowhere")
