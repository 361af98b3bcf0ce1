"""`monarch.Simulator`: programs run on it as on any mesh, take simulated time and memory, and leave their files."""

from __future__ import annotations

import csv
import gc
import json
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

import monarch
import monarch.tensor as mt
from monarch.actor import Actor, ProcMesh, endpoint, this_proc
from monarch.simulator import Simulator, TimingType, by_communication, patch_tensor_engine, set_meta
from monarch.tensor.controller.stream import Stream, get_active_stream
from monarch.tensor.remote import remote_function as remote_module
from tests.support.examples import examples
from tests.tensor.loopback import loopback
from tests.tensor.programs import namespace, programs, run, tensors

CALL, REDUCE = 10_000, 100_000


@pytest.fixture
def sim(tmp_path: Path) -> Simulator:
    """Two ranks; its files go to `tmp_path`."""
    return Simulator(1, 2, trace_path=tmp_path / "trace.json")


def tracks(path: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The X events of a trace, by the names of process and thread."""
    events = json.loads(path.read_text())["traceEvents"]
    names: dict[Any, str] = {}
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
        elif event["ph"] == "M" and event["name"] == "thread_name":
            names[event["pid"], event["tid"]] = event["args"]["name"]
    for event in events:
        if event["ph"] == "X":
            found.setdefault((names[event["pid"]], names[event["pid"], event["tid"]]), []).append(event)
    return found


def listed(path: Path, process: str = "Controller", thread: str = "Controller") -> list[str]:
    return [event["name"] for event in tracks(path)[process, thread]]


def memory(path: Path, pid: int = 1) -> list[float]:
    events = json.loads(path.read_text())["traceEvents"]
    return [event["args"]["MB"] for event in events if event["ph"] == "C" and event["pid"] == pid]


def timed(path: Path, process: str, thread: str) -> list[tuple[str, float, float]]:
    return [(event["name"], event["ts"], event["dur"]) for event in tracks(path)[process, thread]]


# --- programs -------------------------------------------------------------------------------------------------


def test_a_small_program_leaves_a_trace_of_the_controller_and_the_main_stream(sim: Simulator, tmp_path: Path) -> None:
    assert sim.mesh.names == ("host", "gpu") and len(sim.mesh) == 2
    with sim.mesh.activate():
        x = torch.ones(3)
        total = monarch.inspect(x + x)
    assert (total.shape, total.dtype, type(total)) == (torch.Size([3]), torch.float32, torch.Tensor)
    assert not (tmp_path / "trace.json").exists()
    sim.mesh.exit()
    sim.mesh.exit()
    found = tracks(tmp_path / "trace.json")
    assert sorted(found) == [("Controller", "Controller"), ("Device 0", "main"), ("Device 1", "main")]
    assert timed(tmp_path / "trace.json", "Device 1", "main") == [
        ("aten.ones", 0.5, 10.0),
        ("aten.add.Tensor", 10.5, 10.0),
    ]
    event = found["Device 0", "main"][1]
    assert event["cat"] == "stream" and {"External id", "correlation", "cbid", "traceback"} <= set(event["args"])
    assert any("test_simulator.py" in line for line in event["args"]["traceback"])
    assert event["args"]["correlation"] == found["Controller", "Controller"][1]["args"]["correlation"]
    view = pickle.loads((tmp_path / "memory_view.pt").read_bytes())
    assert [entry["action"] for entry in view["device_traces"][0]] == [
        "alloc",
        "alloc",
        "free_requested",
        "free_completed",
    ]
    with pytest.raises(monarch.tensor.controller.engine.EngineEnded, match=r"exit\(\) was called"):
        x.add(1)


def test_the_controller_lists_commands_in_order(sim: Simulator, tmp_path: Path) -> None:
    other = Stream("other")
    with sim.mesh.activate():
        x = torch.randn(100, 100)
        y = x.mm(x)
        y.uniform_()
        lent, borrow = other.borrow(y, mutable=True)
        with other.activate():
            lent.add_(1)
        borrow.drop()
    sim.mesh.exit()
    assert listed(tmp_path / "trace.json") == [
        "aten.randn", "aten.mm", "aten.uniform_", "BorrowCreate", "BorrowFirstUse", "aten.add_.Tensor", "DeleteRefs",
        "BorrowLastUse", "BorrowDrop", "RequestStatus", "Exit",
    ]  # fmt: skip
    assert memory(tmp_path / "trace.json") == [0.04, 0.08]
    assert timed(tmp_path / "trace.json", "Device 0", "other") == [
        ("waiting for main", 2.5, 28.0),
        ("wait event", 30.5, 0.5),
        ("aten.add_.Tensor", 31.0, 10.0),
    ]
    assert timed(tmp_path / "trace.json", "Device 0", "main")[3:] == [
        ("waiting for other", 30.5, 10.5),
        ("wait event", 41.0, 0.5),
    ]


def test_a_reduction_on_another_stream_runs_beside_what_the_main_one_does(sim: Simulator, tmp_path: Path) -> None:
    reducer = Stream("reducer_stream")
    with sim.mesh.activate():
        x = torch.ones(4, 4)
        lent, borrow = reducer.borrow(x, mutable=True)
        with reducer.activate():
            lent.reduce_("gpu")
        y = torch.ones(4, 4) @ torch.ones(4, 4)
        borrow.drop()
        x.add(y)
    sim.mesh.exit()
    assert [name for name, *_ in timed(tmp_path / "trace.json", "Device 0", "reducer_stream")] == [
        "waiting for main", "wait event", "reduce_scatter",
    ]  # fmt: skip
    main = timed(tmp_path / "trace.json", "Device 0", "main")
    ends = {name: start + duration for name, start, duration in main}
    assert [name for name, *_ in main][-3:] == ["waiting for reducer_stream", "wait event", "aten.add.Tensor"]
    assert ends["aten.mm"] == 40.5 and ends["waiting for reducer_stream"] == 10.5 + 0.5 + 100


def test_views_take_no_time_and_keep_memory(sim: Simulator) -> None:
    with sim.mesh.activate():
        x = torch.zeros(100, 100)
        view = x.t().t()[10:].view(-1, 10).detach()
        sim._ctrl.flush()
        assert [len(device.spans) for device in sim._ctrl.machine.devices] == [1, 1]
        del x
        sim._ctrl.pulse()
        y = view + 1
        del view
        assert sim._ctrl.step()[1] == pytest.approx(0.04 + 0.036)
        assert sim._ctrl.step() == (0.0, pytest.approx(0.036))  # what the views showed is gone
        del y
    sim.mesh.exit()


def test_freed_memory_is_there_for_what_follows(sim: Simulator) -> None:
    with sim.mesh.activate():
        x = torch.zeros(1000)
        for _ in range(10):
            x = x + 1
        assert sim._ctrl.step() == (pytest.approx((0.5 + 11 * 10) / 1e6), 2 * 0.004)
        x.resize_(2000)
        assert sim._ctrl.step()[1] == 2 * 0.004
    sim.mesh.exit()


def test_a_step_is_an_iteration_of_its_own(sim: Simulator, tmp_path: Path) -> None:
    with sim.mesh.activate():
        x = torch.ones(10)
        assert sim._ctrl.step() == (10.5e-6, 40e-6)
        x.reduce("gpu")
        assert sim._ctrl.step() == (100.5e-6, 80e-6)
    sim.mesh.exit()
    found = [listed(tmp_path / name) for name in ("trace_0.json", "trace_1.json", "trace.json")]
    assert found == [["aten.ones"], ["all_reduce", "DeleteRefs"], ["RequestStatus", "Exit"]]
    assert timed(tmp_path / "trace_1.json", "Device 0", "main") == [("all_reduce", 11.0, 100.0)]
    assert (tmp_path / "memory_view_1.pt").exists()


@pytest.mark.parametrize(
    ("reduction", "scatter", "inplace", "name", "shape"),
    [
        ("sum", False, False, "all_reduce", (2, 3)),
        ("sum", False, True, "reduce_scatter", (2, 3)),
        ("avg", True, False, "reduce_scatter", (3,)),
        ("stack", False, False, "all_gather", (2, 2, 3)),
        ("stack", True, False, "all_to_all", (2, 3)),
    ],
)
def test_each_kind_of_reduction(
    sim: Simulator, tmp_path: Path, reduction: str, scatter: bool, inplace: bool, name: str, shape: tuple[int, ...]
) -> None:
    with sim.mesh.activate():
        x = torch.ones(2, 3)
        y = (x.reduce_ if inplace else x.reduce)("gpu", reduction, scatter=scatter)
        assert monarch.inspect(y).shape == shape == y.shape
        a, b = torch.ones(4), torch.ones(5, dtype=torch.int32)
        monarch.reduce({"a": a, "b": b}, "gpu")
    sim.mesh.exit()
    assert listed(tmp_path / "trace.json", "Device 1", "main") == [
        "aten.ones",
        name,
        "aten.ones",
        "aten.ones",
        "all_reduce",
    ]
    assert sum(sim._ctrl.machine.devices[0].ledger.live.values()) > 0


def test_moves_within_a_rank_and_between_ranks(tmp_path: Path) -> None:
    sim = Simulator(2, 2, trace_path=tmp_path / "trace.json")
    first, second = sim.mesh.slice(host=0), sim.mesh.slice(host=1)
    with first.activate():
        x = torch.ones(3)
        y = x.to_mesh(second)
        z = x.to_mesh(first)
        late = z.to_mesh(first, stream=Stream("other"))
        assert monarch.inspect(y).shape == (3,) == late.shape
    sim.mesh.exit()
    assert timed(tmp_path / "trace.json", "Device 0", "main")[:3] == [
        ("aten.ones", 0.5, 10.0), ("SendTensor", 10.5, 100.0), ("SendTensor", 110.5, 1.0),
    ]  # fmt: skip
    assert timed(tmp_path / "trace.json", "Device 3", "main") == [
        ("waiting for other ranks", 1.0, 9.5), ("RecvTensor", 10.5, 100.0),
    ]  # fmt: skip
    assert listed(tmp_path / "trace.json")[:3] == ["aten.ones", "SendTensor", "SendTensor"]


def test_ranks_that_do_the_same_are_one_until_they_do_not(tmp_path: Path) -> None:
    sim = Simulator(2, 4, trace_path=tmp_path / "trace.json", group_workers=True)
    with sim.mesh.activate() as mesh:
        torch.ones(3).reduce(("host", "gpu"))
        sim._ctrl.step()
        with mesh.slice(host=1).activate():
            torch.ones(3).reduce("gpu")
    sim.mesh.exit()
    assert ("Device 0 [0-7]", "main") in tracks(tmp_path / "trace_0.json")
    assert set(tracks(tmp_path / "trace.json")) == {("Controller", "Controller"), ("Device 4 [4-7]", "main")}


def test_training_takes_the_same_time_however_it_is_issued(tmp_path: Path) -> None:
    def train(wrap: Any) -> list[int]:
        sim = Simulator(2, 2, simulate_mode="quiet", build_ir=True)
        with sim.mesh.activate():
            net = torch.nn.Linear(8, 8)
            optimizer = torch.optim.Adam(net.parameters(), fused=True)
            x = torch.ones(4, 8)

            def step(x: Any) -> Any:
                loss = net(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                monarch.reduce_([p.grad for p in net.parameters()], reduction="avg")
                optimizer.step()
                return loss.detach()

            issued = wrap(step)
            for _ in range(3):
                issued(x)
            sim._ctrl.step()
            before = sim.ir.command_types()["Reduce:reduce_scatter:unknown:4"]
            found = [(monarch.inspect(issued(x)), sim._ctrl.step()[0])[1] for _ in range(3)]
            assert sim.ir.command_types()["Reduce:reduce_scatter:unknown:4"] == before + 3
        sim.mesh.exit()
        return [round(seconds * 1e6) // 10 for seconds in found]

    plain, traced = train(lambda step: step), train(monarch.function)
    assert plain == traced and plain[0] > 10


def test_coalesced_and_compiled_commands(sim: Simulator, tmp_path: Path) -> None:
    @mt.compile
    def twice(x: Any) -> Any:
        y = x + 1
        y.mul_(2)
        return y.view(-1), y.reduce("gpu", "stack")

    with sim.mesh.activate():
        x = torch.ones(2, 3)
        for _ in range(3):
            flat, stacked = twice(x)
        assert (flat.shape, stacked.shape) == ((6,), (2, 2, 3))
        assert [value.shape for value in monarch.inspect((flat, stacked))] == [(6,), (2, 2, 3)]
        sim._ctrl.step()
        with monarch.coalescing():
            made = torch.zeros(3) + torch.tensor([1.0, 2.0, 3.0])
            made.mul_(2)
        del flat, stacked
    sim.mesh.exit()
    assert listed(tmp_path / "trace_0.json", "Device 0", "main") == [
        "aten.ones", *["aten.add.Tensor", "aten.mul_.Tensor", "all_gather"] * 3,
    ]  # fmt: skip
    assert [name for name in listed(tmp_path / "trace.json", "Device 0", "main") if name.startswith("aten")] == [
        "aten.zeros", "aten.add.Tensor", "aten.mul_.Tensor",
    ]  # fmt: skip


def test_a_borrow_in_a_recording(sim: Simulator, tmp_path: Path) -> None:
    other = Stream("other")

    @mt.compile
    def doubled(x: Any) -> Any:
        lent, borrow = other.borrow(x)
        with other.activate():
            made = lent * 2
        borrow.drop()
        back, again = get_active_stream().borrow(made)
        total = back + 1
        again.drop()
        return total

    with sim.mesh.activate():
        x = torch.ones(100)
        for _ in range(3):
            total = doubled(x)
            sim._ctrl.step()
        assert monarch.inspect(total).shape == (100,)
    sim.mesh.exit()
    events = [name for name in listed(tmp_path / "trace_2.json") if name not in ("DeleteRefs", "aten.detach")]
    one = ["BorrowCreate", "BorrowFirstUse"]
    assert events == [
        *one, "aten.mul.Tensor", "BorrowLastUse", "BorrowDrop", *one, "aten.add.Tensor", "BorrowLastUse", "BorrowDrop",
    ]  # fmt: skip
    assert listed(tmp_path / "trace_2.json", "Device 0", "other")[-1] == "wait event"


def test_remote_functions_are_asked_on_tensors_without_values(sim: Simulator, tmp_path: Path) -> None:
    @monarch.remote
    def both(x: torch.Tensor, n: int) -> Any:
        return x.new_ones(n), x.view(-1)

    declared = monarch.remote(lambda x: 1 / 0, propagate=lambda x: x.new_empty(7))
    with sim.mesh.activate():
        x = torch.ones(2, 3)
        misses = remote_module._miss
        for n in (4, 5, 4):
            made, flat = both(x, n)
            assert [value.shape for value in monarch.inspect((made, flat))] == [(n,), (6,)]
        assert remote_module._miss - misses == 2
        assert monarch.inspect(declared(x)).shape == (7,)
        values = both.call(x, 3).get()
        assert [list(map(len, value)) for value in values.values()] == [[3, 6]] * 2
        assert [len(future.get()[0]) for future in both.stream(x, 2)] == [2, 2]
        assert monarch.call_on_shard_and_fetch(monarch.remote(str.upper), "a", shard={"host": 0, "gpu": 1}).get() == "A"
        with pytest.raises(NotImplementedError, match=r"remote function .*item.* without values.*Give it `propagate=`"):
            monarch.remote(torch.Tensor.item).call(x.sum()).get()
        ref = monarch.remote(lambda: monarch.OpaqueRef([1]), propagate=lambda: monarch.OpaqueRef(None))()
        assert monarch.inspect(ref._key).dtype == torch.int64
        states = monarch.random.get_state() if hasattr(monarch, "random") else None
        del ref, states
    sim.mesh.exit()
    shown = [name.rpartition(".")[2] for name in listed(tmp_path / "trace.json", "Device 0", "main")]
    assert (shown.count("both"), shown.count("<lambda>")) == (5, 2)


def test_what_reads_a_value_waits_for_it_in_simulated_time(sim: Simulator) -> None:
    with sim.mesh.activate():
        x = torch.ones(3)
        future = monarch.fetch_shard(x.reduce("gpu"), host=0, gpu=1)
        machine = sim._ctrl.machine
        assert machine.now < CALL
        assert future.get().shape == (3,)
        assert machine.now == 500 + CALL + REDUCE
    sim.mesh.exit()


def test_metadata_of_every_kind_comes_back(sim: Simulator) -> None:
    with sim.mesh.activate() as mesh:
        x = torch.ones(3, 4, dtype=torch.complex64).conj()
        part = torch.zeros(6, 4, dtype=torch.bfloat16).t()[1:, ::2]
        fetched = monarch.inspect([x, part, mesh.rank("gpu"), torch.ones(2, device="meta").device, 5])
    assert (fetched[0].is_conj(), fetched[0].dtype) == (True, torch.complex64)
    assert (fetched[1].shape, fetched[1].stride(), fetched[1].storage_offset()) == (
        (3, 3),
        part.stride(),
        part.storage_offset(),
    )
    assert (fetched[2].dtype, fetched[3].type, fetched[4]) == (torch.int64, "meta", 5)
    sim.mesh.exit()


def test_misuse_and_shapes_are_checked_as_on_any_mesh(sim: Simulator) -> None:
    with sim.mesh.activate():
        x = torch.ones(3)
        with pytest.raises(RuntimeError, match="broadcast"):
            x + torch.ones(4)
        with pytest.raises(ValueError, match="outside the mesh"):
            monarch.inspect(x, host=0, gpu=2)
        with monarch.no_mesh.activate():
            local = torch.ones(3)
        with pytest.raises(TypeError, match="LOCAL_TENSOR"):
            x.add(local)
    sim.mesh.exit()


def test_tags_reach_traces_and_timings(sim: Simulator, tmp_path: Path) -> None:
    sim.estimator.set_custom_timing({TimingType.CALL_FUNCTION: lambda task: 7_000 if task.meta == "b" else 1_000})
    with sim.mesh.activate():
        with set_meta("a"):
            x = torch.ones(3)
            with set_meta("b"):
                x = x + 1
        x = x + 1
    sim.mesh.exit()
    events = tracks(tmp_path / "trace.json")["Device 0", "main"]
    assert [(event["dur"], event["args"].get("meta")) for event in events] == [(1.0, "a"), (7.0, "b"), (1.0, None)]


def test_a_timing_function_that_fails_ends_the_simulation(sim: Simulator) -> None:
    sim.estimator.set_custom_timing({TimingType.CALL_FUNCTION: lambda task: {"aten.ones": 5}[task.name]})
    with sim.mesh.activate():
        x = torch.ones(3)
        sim._ctrl.flush()
        x = x + 1
        with pytest.raises(KeyError, match=r"aten\.add\.Tensor"):
            monarch.inspect(x)
        with pytest.raises(monarch.tensor.controller.engine.EngineEnded, match=r"simulation failed: KeyError"):
            monarch.inspect(x)
    sim.mesh.exit()


def test_timings_by_the_communication_model(sim: Simulator) -> None:
    sim.estimator.set_custom_timing({**by_communication(), TimingType.CALL_FUNCTION: 0})
    with sim.mesh.activate():
        big = torch.ones(1_000_000_000)  # 4 GB that nobody has
        big.reduce_("gpu")
        assert sim._ctrl.step() == (pytest.approx(4e9 / 900e9, rel=1e-3), 4000.0)
    sim.mesh.exit()


@settings(max_examples=examples(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_memory_is_what_workers_would_have(lines: list[str]) -> None:
    sim = Simulator(1, 2, simulate_mode="quiet")
    with loopback(gpus=2) as mesh:
        there, real = namespace(), 0
        for line in lines:
            run(line, there)
        mesh.client.flush()
        kept = {
            value.untyped_storage()._cdata: value.untyped_storage().nbytes()
            for value in mesh.client.executors[0].tensors.values()
        }
        real = sum(kept.values())
        layouts = {name: tensor.shape for name, tensor in tensors(there).items()}
    with sim.mesh.activate():
        here = namespace()
        for line in lines:
            run(line, here)
        sim._ctrl.flush()
        assert {name: value.shape for name, value in monarch.inspect(tensors(here)).items()} == layouts
        assert [sum(device.ledger.live.values()) for device in sim._ctrl.machine.devices] == [real, real]
        here.clear()
    sim._ctrl.pulse()
    gc.collect()
    sim._ctrl.pulse()
    assert not sim._ctrl._interpreter.refs and not sim._ctrl._open
    assert not any(device.ledger.live for device in sim._ctrl.machine.devices)
    sim.mesh.exit()


# --- what is left ---------------------------------------------------------------------------------------------


def program(sim: Simulator) -> None:
    with sim.mesh.activate():
        x = torch.ones(3, 3)
        other = Stream("other")
        lent, borrow = other.borrow(x)
        with other.activate():
            made = lent.mm(lent)
        borrow.drop()
        x.reduce_("gpu")
        x.to_mesh(sim.mesh)
        del made
    sim.mesh.exit()


@pytest.mark.parametrize(
    ("mode", "files"),
    [
        ("simulate", {"trace.json", "memory_view.pt"}),
        ("simulate_with_report_only", set()),
        ("command_history", {"history.pkl"}),
        ("everything", {"trace.json", "memory_view.pt", "history.pkl"}),
        ("quiet", set()),
    ],
)
def test_each_mode_leaves_its_files(
    mode: str, files: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(
        Simulator(
            1, 2, simulate_mode=mode, trace_path=tmp_path / "trace.json", command_history_path=tmp_path / "history.pkl"
        )
    )
    assert {path.name for path in tmp_path.iterdir()} == files
    printed = capsys.readouterr().out
    assert printed.startswith("simulated until the end: 0.000") == (mode == "simulate_with_report_only")
    if "history.pkl" in files:
        history = pickle.loads((tmp_path / "history.pkl").read_bytes())
        assert [entry["command"] for entry in history["commands"]][:4] == [
            "CallFunction", "BorrowCreate", "BorrowFirstUse", "CallFunction",
        ]  # fmt: skip
        assert history["commands"][0]["outputs"][0]["shape"] == (3, 3)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("stream_only", {"Device 0", "Device 1"}),
        ("controller_trace_only", {"Controller"}),
        ("everything", {"Controller", "Device 0", "Device 1"}),
    ],
)
def test_each_trace_mode_has_its_tracks(mode: str, expected: set[str], tmp_path: Path) -> None:
    program(Simulator(1, 2, trace_mode=mode, trace_path=tmp_path / "trace.json"))
    assert {process for process, _ in tracks(tmp_path / "trace.json")} == expected


def test_the_graph_of_a_program(tmp_path: Path) -> None:
    sim = Simulator(1, 4, simulate_mode="quiet", build_ir=True)
    program(sim)
    sim.export_ir(tmp_path / "ir.pkl")
    graph = pickle.loads((tmp_path / "ir.pkl").read_bytes())
    types = graph.command_types()
    assert types["BorrowCreate"] == types["CallFunction:aten.mm:unknown"] == types["SendTensor:unknown"] == 1
    assert types["Reduce:reduce_scatter:unknown:4"] == 1
    assert graph.command_types(shapes=True)["Reduce:reduce_scatter:(3x3):4"] == 1
    graph.export_borrows_csv(tmp_path / "borrows.csv")
    graph.export_sends_csv(tmp_path / "sends.csv")
    graph.export_data_csv(tmp_path / "data.csv")
    graph.export_memory_viz(tmp_path / "memory.pt")
    (borrow,), (send,), data = (rows(tmp_path / f"{name}.csv") for name in ("borrows", "sends", "data"))
    kinds = [node.kind for node in graph.nodes]
    assert (borrow["from_stream"], borrow["to_stream"], borrow["nbytes"]) == ("main", "other", "36")
    life = [kinds[int(borrow[name])] for name in ("create", "first_use", "last_use", "drop")]
    assert life == ["BorrowCreate", "BorrowFirstUse", "BorrowLastUse", "BorrowDrop"]
    assert (send["from_ranks"], send["to_ranks"], send["shape"]) == ("0 1 2 3", "0 1 2 3", "(3x3)")
    assert [row["nbytes"] for row in data] == ["36"] * 3 and data[0]["writes"] == "1"
    view = pickle.loads((tmp_path / "memory.pt").read_bytes())
    assert sum(entry["action"] == "alloc" for entry in view["device_traces"][0]) == 3
    edges = {(kinds[source], kinds[target], kind) for source, target, kind in graph.edges}
    assert {("BorrowCreate", "BorrowFirstUse", "event"), ("BorrowLastUse", "BorrowDrop", "event")} <= edges


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_options_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"simulate_mode='fast' is not one of 'simulate'"):
        Simulator(1, 1, simulate_mode="fast")
    with pytest.raises(ValueError, match=r"trace_mode='all' is not one of 'stream_only'"):
        Simulator(1, 1, trace_mode="all")
    with pytest.raises(ValueError, match="gpus=0"):
        Simulator(1, 0)
    with pytest.raises(NotImplementedError, match="no server"):
        Simulator(1, 1, upload_trace=True)
    sim = Simulator(1, 1, simulate_mode="quiet")
    with pytest.raises(NotImplementedError, match="perfetto"):
        sim.upload()
    with pytest.raises(RuntimeError, match="build_ir=True"):
        sim.export_ir(tmp_path / "ir.pkl")
    sim.mesh.exit()
    with pytest.raises(RuntimeError, match=r"exit\(\) was called"):
        sim._ctrl.step()


def test_display_draws_with_trace2html(sim: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(RuntimeError, match="trace2html"):
        sim.display()
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "trace2html"
    tool.write_text(f"#!{sys.executable}\nimport sys\nopen(sys.argv[3], 'w').write(open(sys.argv[1]).read()[:14])\n")
    tool.chmod(0o755)
    shown: Any = ModuleType("IPython.display")
    shown.HTML, shown.display = str, lambda page: page
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    with sim.mesh.activate():
        torch.ones(3)
    assert sim.display() == '{"traceEvents"'
    sim.mesh.exit()


# --- in place of an engine --------------------------------------------------------------------------------------


class Trainer(Actor):
    """Works with distributed tensors."""

    @endpoint
    def train(self, procs: ProcMesh) -> Any:
        with procs.activate() as mesh:
            value = monarch.inspect(torch.ones(2) + mesh.rank("gpus"), gpus=1)
            with procs.slice(gpus=0).activate() as part:
                return value.tolist(), type(mesh.client).__name__, mesh.names, len(part)


@pytest.mark.procs
def test_actors_of_a_class_work_on_simulated_meshes(procs: ProcMesh) -> None:
    with patch_tensor_engine(Trainer):
        trainer = this_proc().spawn("trainer", Trainer)
    assert trainer.train.call_one(procs).get() == ([0.0, 0.0], "SimulatedEngine", ("gpus",), 1)
    trainer.stop().get()

    @patch_tensor_engine(Trainer, lambda procs: Simulator(2, 1, simulate_mode="quiet"))
    def spawned() -> Any:
        return procs.spawn("trainer", Trainer)

    own = spawned()
    assert [value[1:3] for value in own.train.call(procs).get().values()] == [("SimulatedEngine", ("gpus",))] * 2
    own.stop().get()
    real = this_proc().spawn("trainer", Trainer)
    assert real.train.call_one(procs).get() == ([2.0, 2.0], "TensorEngine", ("gpus",), 1)
    real.stop().get()


@pytest.mark.procs
def test_a_simulated_mesh_has_as_many_ranks_as_the_processes(procs: ProcMesh) -> None:
    with patch_tensor_engine(Trainer, lambda procs: Simulator(1, 3, simulate_mode="quiet")):
        trainer = this_proc().spawn("trainer", Trainer)
    with pytest.raises(monarch.actor.ActorError, match="simulated mesh has 3 ranks"):
        trainer.train.call_one(procs).get()
    trainer.stop().get()
    with pytest.raises(TypeError, match="takes a subclass"):
        patch_tensor_engine(int)
