"""Checkpoints of distributed tensors: on meshes of other sizes, and in one process by torch.distributed.checkpoint."""

from __future__ import annotations

import errno
import os
import pickle
import threading
import warnings
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

import monarch
import monarch.tensor as mt
from monarch import checkpoint
from monarch.actor import ProcMesh, this_host
from monarch.tensor.failures import RemoteException
from monarch.tensor.remote import checkpoint as checkpoint_module
from monarch.tensor.remote.checkpoint import _tell
from monarch.tensor.worker import checkpoint as worker
from tests.support.patience import TIMEOUT
from tests.support.users import STRANGER, as_stranger, needs_root
from tests.support.watched import record_watched
from tests.tensor.loopback import loopback

WHOLE = torch.arange(48.0).reshape(6, 8)
BIAS = torch.arange(5)
PLAIN = {"net": {"w": WHOLE, "b": BIAS}, "step": 7, "names": ["a", 2]}
ROWS = {"net.w": {"gpus": 0}}
REFUSED = "may be written by others .*copy the checkpoint into a folder of your own"


def saved(folder: Path, **options: Any) -> str:
    """A checkpoint of PLAIN by two processes."""
    path = str(folder / "two")
    with loopback(gpus=2):
        checkpoint.save(state_of(WHOLE, BIAS, "gpus", step=7, names=["a", 2]), path, ROWS, **options)
    return path


def state_of(whole: torch.Tensor, bias: torch.Tensor, dims: Any, **values: Any) -> dict[str, Any]:
    return {"net": {"w": monarch.shard(whole, dims), "b": monarch.replicate(bias)}, **values}


def empty(dims: Any = "gpus") -> dict[str, Any]:
    with mt.no_mesh.activate():
        whole, bias = torch.zeros_like(WHOLE), torch.zeros_like(BIAS)
    return state_of(whole, bias, dims, step=0, names=["", 0])


def same(state: Any, dims: Any) -> None:
    whole, bias = monarch.gather(state["net"]["w"], dims).get(), monarch.inspect(state["net"]["b"])
    assert (whole.tolist(), bias.tolist()) == (WHOLE.tolist(), BIAS.tolist())
    assert (state["step"], state["names"]) == (7, ["a", 2])


def alone(path: str) -> dict[str, Any]:
    """Returns what torch reads without any mesh."""
    import torch.distributed.checkpoint as dcp

    net = {"w": torch.zeros(6, 8), "b": torch.zeros(5, dtype=torch.int64)}
    state: dict[str, Any] = {"net": net, "step": 0, "names": ["", 0]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that there is one process
        dcp.load(state, checkpoint_id=path)
    return state


@pytest.mark.parametrize(
    ("sizes", "dims"),
    [
        ({"gpus": 1}, "gpus"),
        ({"gpus": 3}, {"gpus": 0}),
        ({"gpus": 4}, {"gpus": 1}),
        ({"dp": 2, "tp": 3}, {"tp": 0, "dp": 1}),
        ({"dp": 3, "tp": 2}, {"dp": 0, "tp": 0}),
    ],
    ids=str,
)
def test_it_is_loaded_on_a_mesh_of_another_size(tmp_path: Path, sizes: dict[str, int], dims: Any) -> None:
    path = saved(tmp_path)
    placement = {dims: 0} if isinstance(dims, str) else dims
    with loopback(**sizes):
        state = empty(dims)
        version = state["net"]["w"]._version
        checkpoint.load(state, path, {"*.w": placement})
        same(state, dims)
        assert state["net"]["w"]._version > version  # autograd knows that it was written to


def test_torch_reads_it_in_one_process_and_writes_what_a_mesh_reads(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    path = saved(tmp_path)
    state = alone(path)
    assert torch.equal(state["net"]["w"], WHOLE) and torch.equal(state["net"]["b"], BIAS)
    assert (state["step"], state["names"]) == (7, ["a", 2])
    dcp_to_torch_save(path, tmp_path / "one.pt")
    assert torch.equal(torch.load(tmp_path / "one.pt")["net"]["w"], WHOLE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=str(tmp_path / "plain"))
    with loopback(gpus=2):
        there = empty()
        checkpoint.load(there, tmp_path / "plain", ROWS)
        same(there, "gpus")


def test_it_is_read_as_it_was(tmp_path: Path) -> None:
    path = saved(tmp_path)
    with loopback(dp=2, tp=2):
        state = checkpoint.read(path, {"net.w": {"tp": 1}})
        assert list(state) == ["step", "names", "net"] and state["net"]["w"].shape == (6, 4)
        assert monarch.gather(state["net"]["w"], {"tp": 1}).get().tolist() == WHOLE.tolist()
        with pytest.raises(
            ValueError, match=r"net\.b has shape \(5,\), and dimension 0 cannot be divided into 2 equal parts"
        ):
            checkpoint.read(path, {"*": {"tp": 0}})


def test_each_part_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = record_watched(monkeypatch, checkpoint_module)
    path = saved(tmp_path)
    assert sorted(os.listdir(path)) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    with loopback(gpus=2):
        checkpoint.save({"t": [monarch.replicate(WHOLE) for _ in range(4)]}, tmp_path / "same")
        title, far = watched[-1]
        assert (title, far()) == (f"checkpoint {tmp_path / 'same'}", (4 * WHOLE.nbytes,) * 2)
    sizes = [os.path.getsize(tmp_path / "same" / f"__{rank}_0.distcp") for rank in range(2)]
    assert sizes[0] == sizes[1] > 2 * WHOLE.nbytes


@pytest.mark.parametrize("fills", [True, False], ids=["load", "read"])
def test_how_far_a_read_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fills: bool) -> None:
    path = saved(tmp_path)
    watched = record_watched(monkeypatch, checkpoint_module)
    with loopback(gpus=2):
        seen: list[int] = []
        commit = worker._Into.commit_tensor

        def committed(into: Any, item: Any, tensor: torch.Tensor) -> None:
            commit(into, item, tensor)
            seen.append(worker.read_so_far(numbers[-1]))

        numbers: list[int] = []
        real = worker.read

        def reading(number: int, *args: Any) -> None:
            numbers.append(number)
            assert worker.read_so_far(number) == 0
            real(number, *args)

        monkeypatch.setattr(worker._Into, "commit_tensor", committed)
        monkeypatch.setattr(worker, "read", reading)
        each = WHOLE.nbytes // 2 + BIAS.nbytes
        for _ in range(2):
            if fills:
                checkpoint.load(empty(), path, ROWS)
            else:
                checkpoint.read(path, ROWS)
            title, far = watched[-1]
            assert (title, far()) == (f"reading checkpoint {path}", (2 * each, 2 * each))
        first = seen[0]
        assert first in {WHOLE.nbytes // 2, BIAS.nbytes} and seen == [first, each] * 4
        assert len(watched) == 2 and watched[0][1]() == (0, 2 * each)  # another read has taken its place


@pytest.mark.parametrize("filled", [True, False], ids=["load", "read"])
def test_training_goes_on_where_it_was(tmp_path: Path, filled: bool) -> None:
    def trained(net: Any, optimizer: Any, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            net(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()

    def made() -> tuple[Any, Any]:
        net = torch.nn.Linear(3, 4)
        with torch.no_grad():
            for weight in net.parameters():
                weight.copy_(torch.linspace(-1, 1, weight.numel()).reshape(weight.shape))
        return net, torch.optim.Adam(net.parameters(), lr=0.1)

    net, optimizer = made()
    trained(net, optimizer, 4)
    with loopback(gpus=2):
        there, its = made()
        trained(there, its, 2)
        checkpoint.save({"net": there.state_dict(), "optimizer": its.state_dict()}, tmp_path / "step2")
    with loopback(gpus=3):
        again, its = made()
        if filled:
            trained(again, its, 1)  # so that the optimizer has a state to be filled
            state = {"net": again.state_dict(), "optimizer": its.state_dict()}
            checkpoint.load(state, tmp_path / "step2")
        else:
            state = checkpoint.read(tmp_path / "step2")
        again.load_state_dict(state["net"])
        its.load_state_dict(state["optimizer"])
        trained(again, its, 2)
        for mine, wanted in zip(again.parameters(), net.parameters(), strict=True):
            assert monarch.inspect(mine, gpus=2).tolist() == wanted.tolist()


def test_the_tensors_may_be_changed_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()
    plain = worker._write

    def slowly(*args: Any) -> Any:
        begun.set()
        assert go.wait(TIMEOUT)
        return plain(*args)

    monkeypatch.setattr(worker, "_write", slowly)
    with loopback(gpus=1):
        x = torch.ones(3)
        future = checkpoint.save_async({"x": x}, tmp_path / "later")
        assert begun.wait(TIMEOUT)
        with pytest.raises(TimeoutError):
            future.get(timeout=0)
        go.set()
        x.zero_()
        future.get(timeout=TIMEOUT)
        checkpoint.load({"x": x}, tmp_path / "later")
        assert monarch.inspect(x).tolist() == [1, 1, 1]


# --- what goes wrong --------------------------------------------------------------------------------------------


def test_an_older_one_is_not_overwritten_unasked(tmp_path: Path) -> None:
    path = saved(tmp_path)
    with pytest.raises(FileExistsError, match=r"there is a checkpoint in .*/two \(host .*overwrite=True"):
        saved(tmp_path)
    (tmp_path / "two" / "__7_0.distcp").write_bytes(b"of a larger mesh")
    saved(tmp_path, overwrite=True)
    assert "__7_0.distcp" not in os.listdir(path)
    assert alone(path)["step"] == 7


def test_other_shapes_and_names_change_nothing(tmp_path: Path) -> None:
    path = saved(tmp_path)
    with loopback(gpus=2):
        state = empty()
        with pytest.raises(
            ValueError, match=r"net.w is \(3, 8\) here \(\(3, 8\) in each process\), and \(6, 8\) there"
        ):
            checkpoint.load(state, path)
        with pytest.raises(KeyError, match=r"does not have more\. It has net\.w, net\.b, step, names"):
            checkpoint.load({**state, "more": torch.ones(1)}, path, ROWS)
        with pytest.raises(ValueError, match=r"no tensor has a name like 'nett\.\*'"):
            checkpoint.load(state, path, {"nett.*": {"gpus": 0}})
        with pytest.raises(KeyError, match="the mesh has no dimension 'tp'"):
            checkpoint.load(state, path, {"net.w": {"tp": 0}})
        with pytest.raises(
            ValueError, match=r"net\.b has 1 dimensions, and mesh dimension 'gpus' was to divide dimension 1"
        ):
            checkpoint.save(state, tmp_path / "other", {"net.b": {"gpus": 1}})
        with pytest.raises(TypeError, match="made of a dict"):
            checkpoint.save([state], tmp_path / "other")  # type: ignore[arg-type]
        assert monarch.inspect(state["net"]["b"]).tolist() == [0] * 5 and state["step"] == 0
        more = state["more"] = torch.ones(1)
        checkpoint.load(state, path, ROWS, strict=False)
        same(state, "gpus")
        assert monarch.inspect(more).tolist() == [1]


def test_where_there_is_none(tmp_path: Path) -> None:
    with loopback(gpus=2):
        state = empty()
        with pytest.raises(checkpoint.CheckpointError, match=r"rank 0 on host .* finds no checkpoint in .*/nowhere"):
            checkpoint.load(state, tmp_path / "nowhere", ROWS)
        assert monarch.inspect(state["net"]["b"]).tolist() == [0] * 5


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    path = saved(tmp_path)
    os.remove(os.path.join(path, "__1_0.distcp"))
    with loopback(gpus=2):
        state = empty()
        with pytest.raises(checkpoint.CheckpointError, match=r"rank \d on host .* could not read .*No such file"):
            checkpoint.load(state, path, ROWS)
        with pytest.raises(mt.RemoteException):  # it counts as failed: half of it may have been read
            monarch.inspect(state["net"]["w"], gpus=1)


class Marker:
    """An object that leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_checkpoint_that_others_may_write_is_read_as_data(tmp_path: Path) -> None:
    path = Path(saved(tmp_path))
    for file in path.iterdir():
        file.chmod(0o666)
    with loopback(gpus=3):
        state = empty()
        checkpoint.load(state, path, ROWS)
        same(state, "gpus")


def test_code_in_an_index_that_others_may_write_does_not_run(tmp_path: Path) -> None:
    path, ran = Path(saved(tmp_path)), tmp_path / "ran"
    (path / ".metadata").write_bytes(pickle.dumps(Marker(ran)))
    (path / ".metadata").chmod(0o666)
    with loopback(gpus=1), pytest.raises(checkpoint.CheckpointError, match=REFUSED):
        checkpoint.load(empty(), path, ROWS)
    assert not ran.exists()


def test_objects_are_read_from_ones_own_files_only(tmp_path: Path) -> None:
    path = tmp_path / "two"
    with loopback(gpus=2):
        checkpoint.save(state_of(WHOLE, BIAS, "gpus", step=Fraction(1, 3), names=[]), path, ROWS)
    with loopback(gpus=1):
        assert checkpoint.read(path, ROWS)["step"] == Fraction(1, 3)
        for file in path.glob("*.distcp"):
            file.chmod(0o666)
        with pytest.raises(checkpoint.CheckpointError, match=f"'step' is an object that would run code.*{REFUSED}"):
            checkpoint.read(path, ROWS)


@needs_root
@pytest.mark.parametrize("name", ["__1_0.distcp", ".metadata.tmp"])
def test_nothing_is_written_through_a_link_of_somebody_else(open_folder: Path, name: str) -> None:
    mine = open_folder / "mine"
    mine.write_bytes(b"mine")
    (open_folder / "two").mkdir(mode=0o700)
    (open_folder / "two" / name).symlink_to(mine)
    for entry in (open_folder / "two", open_folder / "two" / name):
        os.lchown(entry, STRANGER, STRANGER)
    with pytest.raises(
        OSError, match=f"could not (write|finish) the checkpoint in .*{name} is a link of user {STRANGER}"
    ):
        saved(open_folder)
    assert mine.read_bytes() == b"mine"


@needs_root
@pytest.mark.parametrize("exchanged", ["two", "runs"])
@pytest.mark.parametrize("when", ["begin", "stage", "finish"])
def test_a_stranger_who_exchanges_the_folder_gets_no_other_checkpoint_written_over(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, exchanged: str, when: str
) -> None:
    """He has what is above it, and puts a link to the victim's other one in its place, or in that of a folder above."""
    precious = open_folder / "precious"
    precious.mkdir()
    saved(precious)
    kept = {each.name: each.read_bytes() for each in (precious / "two").iterdir()}
    theirs = open_folder / "theirs" / "runs"
    theirs.mkdir(parents=True)
    saved(theirs)
    for folder in (theirs, theirs.parent):
        os.chown(folder, STRANGER, STRANGER)
    there, other = (theirs, precious) if exchanged == "runs" else (theirs / "two", precious / "two")
    step: Any = getattr(worker, when)

    def exchange() -> None:
        os.rename(there, f"{there}.old")
        os.symlink(other, there)

    def meanwhile(*given: Any) -> Any:
        if not there.is_symlink():
            as_stranger(exchange)
        return step(*given)

    monkeypatch.setattr(worker, when, meanwhile)
    with pytest.raises(OSError, match=f"{there} is a link of user {STRANGER}"):
        saved(theirs, overwrite=True)
    assert {each.name: each.read_bytes() for each in (precious / "two").iterdir()} == kept


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    def full(self: Any, plan: Any, planner: Any) -> Any:
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "__1_0.distcp")
        except OSError as exc:
            raise RuntimeError("PytorchStreamWriter failed writing file") from exc

    monkeypatch.setattr(FileSystemWriter, "write_data", full)
    with loopback(gpus=2):
        with pytest.raises(
            checkpoint.CheckpointError, match=r"rank 0 on host .* could not write .*No space left"
        ) as caught:
            checkpoint.save({"x": torch.ones(2)}, tmp_path / "full")
        assert caught.value.errno == errno.ENOSPC
    assert not (tmp_path / "full" / ".metadata").exists()


def test_a_failed_tensor(tmp_path: Path) -> None:
    with loopback(gpus=2):
        bad = monarch.remote(lambda x: x[5], propagate=lambda x: x.new_empty(()))(torch.ones(2))
        with pytest.raises(mt.RemoteException, match="index 5 is out of bounds"):
            checkpoint.save({"bad": bad}, tmp_path / "bad")
    assert not (tmp_path / "bad" / ".metadata").exists()


def test_tensors_of_two_meshes(tmp_path: Path) -> None:
    with loopback(gpus=2) as mesh:
        x = torch.ones(2)
        with mesh.slice(gpus=0).activate():
            y = torch.ones(2)
        with pytest.raises(ValueError, match="on one mesh"):
            checkpoint.save({"x": x, "y": y}, tmp_path / "both")


# --- real processes -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def procs() -> Iterator[tuple[ProcMesh, ProcMesh]]:
    two = this_host().spawn_procs({"gpus": 2}, name="two")
    three = this_host().spawn_procs({"gpus": 3}, name="three")
    yield two, three
    two.stop().get(timeout=TIMEOUT)
    three.stop().get(timeout=TIMEOUT)


@pytest.mark.full
@pytest.mark.procs
def test_from_two_processes_to_three(procs: tuple[ProcMesh, ProcMesh], tmp_path: Path) -> None:
    two, three = procs
    with two.activate():
        checkpoint.save(state_of(WHOLE, BIAS, "gpus", step=7, names=["a", 2]), tmp_path / "two", ROWS)
    with three.activate():
        state = empty()
        checkpoint.load(state, tmp_path / "two", ROWS)
        same(state, "gpus")


def test_what_is_not_wrong_with_files_keeps_its_cause() -> None:
    error, first = RemoteException.__new__(RemoteException), ValueError("first")
    error.__cause__ = first
    with pytest.raises(RemoteException) as raised:
        try:
            raise error
        except RemoteException as exc:
            _tell(exc)
    assert raised.value is error
    assert error.__cause__ is first
