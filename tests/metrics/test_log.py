"""`monarch.metrics.log`: what is a value, what is refused, where it goes; sinks."""

from __future__ import annotations

import importlib
import json
import logging
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import monarch.metrics
from monarch._linux.private_files import UntrustedFileError
from monarch._runtime import recorder
from monarch.metrics import logged, sinks


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[recorder.Recorder]:
    made = recorder.Recorder()
    monkeypatch.setattr(recorder, "active", made)
    monkeypatch.setattr(logged, "_names", {})
    monkeypatch.setattr(logged, "sinks", [])
    yield made
    for sink in logged.sinks:
        if isinstance(sink, sinks.FileSink):
            sink.close()


class Number:
    """A tensor of one element, as far as it matters."""

    def __float__(self) -> float:
        return 2.5


class Several(Number):
    def __float__(self) -> float:
        raise RuntimeError("a Tensor with 3 elements cannot be converted to Scalar")


def values(recording: recorder.Recorder) -> list[Any]:
    return [event[:5] for event in recording.take(100)]


def test_what_is_logged_is_recorded_with_mesh_and_rank(recording: recorder.Recorder) -> None:
    monarch.metrics.log(step=3, loss=0.5, hits=2, good=True, t=Number(), **{"grad/norm": math.inf})
    expected = (("loss", 0.5), ("hits", 2.0), ("good", 1.0), ("t", 2.5), ("grad/norm", math.inf))
    assert values(recording) == [(recorder.LOGGED, 3, expected, "client", 0)]
    monarch.metrics.log(step=4, loss=math.nan)
    ((_, _, ((_, kept),), *_),) = values(recording)
    assert math.isnan(kept)
    monarch.metrics.log(step=5)
    assert values(recording) == []


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"step": 1, "loss": "0.5"}, TypeError, "loss is logged as a number, not as str: texts belong into the log"),
        ({"step": 1, "loss": None}, TypeError, "not as NoneType"),
        (
            {"step": 1, "loss": Several()},
            ValueError,
            r"loss is logged as one number, and this Several is none .*mean\(\)",
        ),
        ({"step": 1, "loss": 10**400}, ValueError, "loss is larger than a float can be"),
        ({"step": -1, "loss": 1}, ValueError, r"from 0 to 2\*\*62, got -1"),
        ({"step": 2**62, "loss": 1}, ValueError, "from 0"),
        ({"step": 1.0, "loss": 1}, TypeError, "step is a whole number, such as that of the batch: got 1.0"),
        ({"step": True, "loss": 1}, TypeError, "got True"),
        ({"step": 1, **{f"x{n}": n for n in range(65)}}, ValueError, "up to 64 values, got 65"),
    ],
)
def test_what_is_no_value_is_refused_also_when_nobody_listens(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], kind: type[Exception], text: str
) -> None:
    monkeypatch.setattr(recorder, "active", None)
    with pytest.raises(kind, match=text):
        monarch.metrics.log(**given)


def test_names_are_bounded_and_fit_to_send(
    recording: recorder.Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logged, "NAMES", 2)
    monarch.metrics.log(step=0, **{"a\udc80": 1, "b" * 300: 2, "third": 3})
    monarch.metrics.log(step=0, fourth=4, third=3)
    ((_, _, ((first, _), (second, _)), *_),) = values(recording)
    assert first == "a\\udc80" and len(second) == 200
    assert [record.getMessage().removeprefix("[actor=<root>] ")[:60] for record in caplog.records] == [
        "monarch.metrics: 'third' and further names are dropped: a pr"
    ]


def test_a_file_has_what_is_logged(recording: recorder.Recorder, tmp_path: Path) -> None:
    lines = monarch.metrics.to_file(tmp_path / "new" / "{mesh}-{rank}.jsonl")
    table = monarch.metrics.to_file(tmp_path / "all.csv")
    assert lines == str(tmp_path / "new" / "client-0.jsonl")
    monarch.metrics.log(step=7, loss=0.5, **{"=x,y": math.nan})
    first, second = map(json.loads, Path(lines).read_text().splitlines())
    at = first.pop("time")
    assert first == {"mesh": "client", "rank": 0, "step": 7, "name": "loss", "value": 0.5} and at > 1e9
    assert math.isnan(second["value"])
    rows = Path(table).read_text().splitlines()
    assert rows[0] == "time,mesh,rank,step,name,value" and rows[1].endswith(",client,0,7,loss,0.5")
    assert rows[2].endswith(""",client,0,7,"'=x,y",nan"""), "no formula of spreadsheets"


def test_a_sink_that_fails_is_left_out_and_the_program_goes_on(
    recording: recorder.Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sinks, "LARGEST", 150)
    path = monarch.metrics.to_file(tmp_path / "a.jsonl")
    for step in range(5):
        monarch.metrics.log(step=step, loss=0.5)
    assert len(Path(path).read_text().splitlines()) == 1 and logged.sinks == []
    (record,) = caplog.records
    assert "nothing more is written by to_file(" in record.getMessage() and record.levelno == logging.WARNING
    assert len(values(recording)) == 5


@pytest.mark.parametrize(
    ("module", "call", "text"),
    [
        ("torch.utils.tensorboard", lambda: monarch.metrics.to_tensorboard("x"), "pip install torch tensorboard"),
        ("wandb", monarch.metrics.to_wandb, "Weights & Biases needs .*: pip install wandb"),
        ("opentelemetry.metrics", monarch.metrics.to_opentelemetry, r"pip install 'pymonarch\[otel\]'"),
    ],
)
def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, module: str, call: Any, text: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    if "." in module:
        above, _, name = module.rpartition(".")
        monkeypatch.delattr(importlib.import_module(above), name, raising=False)
    with pytest.raises(ImportError, match=text):
        call()


class Package:
    """TensorBoard, W&B and OpenTelemetry at once; `wrote` is what came."""

    def __init__(self) -> None:
        self.wrote: list[Any] = []

    def SummaryWriter(self, folder: str, **options: Any) -> Package:
        self.wrote.append((folder, options))
        return self

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.wrote.append((name, value, step))

    def init(self, **options: Any) -> Package:
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self.wrote.append((values, step))

    def get_meter(self, name: str) -> Package:
        return self

    def create_gauge(self, name: str) -> Package:
        self.wrote.append(name)
        return self

    def set(self, value: float, attributes: dict[str, Any]) -> None:
        self.wrote.append((value, attributes))


def test_tensorboard_writes_in_a_folder_of_this_user_alone(
    recording: recorder.Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = Package()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", package)
    monkeypatch.setattr(importlib.import_module("torch.utils"), "tensorboard", package, raising=False)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for mode in (0o777, 0o1777):
        theirs.chmod(mode)
        with pytest.raises(UntrustedFileError, match="theirs may be written by others"):
            monarch.metrics.to_tensorboard(theirs)
    assert package.wrote == [] and logged.sinks == []
    monarch.metrics.to_tensorboard(theirs / "mine")
    assert package.wrote[0][0] == str(theirs / "mine") and (theirs / "mine").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("name", "taken"),
    [("grad/norm", "grad/norm"), ("loss (train)", "loss__train_"), ("потери", "m______"), ("0.5", "m0.5"), ("", "m")],
)
def test_names_as_opentelemetry_takes_them(name: str, taken: str) -> None:
    assert sinks._instrument(name) == taken and sinks._instrument(name * 300)[255:] == ""


def test_a_name_that_a_provider_refuses_ends_no_sink(recording: recorder.Recorder) -> None:
    metrics = pytest.importorskip("opentelemetry.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    meters = pytest.importorskip("opentelemetry.sdk.metrics")
    reader = export.InMemoryMetricReader()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "get_meter", meters.MeterProvider([reader]).get_meter)
        monarch.metrics.to_opentelemetry()
    monarch.metrics.log(step=1, **{"loss (train)": 1.0, "loss": 2.0})
    found = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    assert [(each.name, each.data.data_points[0].value) for each in found] == [("loss__train_", 1.0), ("loss", 2.0)]
    assert len(logged.sinks) == 1


def test_a_file_is_utf_8_whatever_the_locale(recording: recorder.Recorder, tmp_path: Path) -> None:
    monarch.metrics.to_file(tmp_path / "a.csv")
    (sink,) = logged.sinks
    assert isinstance(sink, sinks.FileSink) and sink._file.encoding == "utf-8"
    monarch.metrics.log(step=1, **{"потери": 1.0})
    assert "потери" in (tmp_path / "a.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("module", "call", "wrote"),
    [
        (
            "torch.utils.tensorboard",
            lambda: monarch.metrics.to_tensorboard("s3://tb", max_queue=3),
            [("s3://tb", {"flush_secs": 5, "max_queue": 3}), ("loss", 0.5, 1), ("loss", 0.25, 2)],
        ),
        ("wandb", monarch.metrics.to_wandb, [({"loss": 0.5}, 1), ({"loss": 0.25}, 2)]),
        (
            "opentelemetry.metrics",
            monarch.metrics.to_opentelemetry,
            ["loss", (0.5, {"mesh": "client", "rank": 0}), (0.25, {"mesh": "client", "rank": 0})],
        ),
    ],
)
def test_what_is_logged_goes_on_to_other_packages(
    recording: recorder.Recorder, monkeypatch: pytest.MonkeyPatch, module: str, call: Any, wrote: list[Any]
) -> None:
    package = Package()
    monkeypatch.setitem(sys.modules, module, package)
    if "." in module:  # what `from torch.utils import tensorboard` looks at first
        above, _, name = module.rpartition(".")
        monkeypatch.setattr(importlib.import_module(above), name, package, raising=False)
    call()
    monarch.metrics.log(step=1, loss=0.5)
    monarch.metrics.log(step=2, loss=0.25)
    assert package.wrote == wrote
