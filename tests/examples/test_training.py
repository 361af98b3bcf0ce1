"""The programs of docs/training that lose ranks, divide a model and change their size learn what one process learns."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.examples.running import EXAMPLES, run_program
from tests.support.tiers import full

pytest.importorskip("torch")

pytestmark = pytest.mark.procs

PATIENCE = 300  # seconds: up to three programs, each of which imports torch's compiler


def run(name: str, *arguments: str, cwd: Path) -> list[str]:
    """The lines the example prints; fails when it does not end well."""
    done = run_program(EXAMPLES / name, *arguments, cwd=cwd, timeout=PATIENCE)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.splitlines()


def module(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(f"{name}_example", EXAMPLES / f"{name}.py")
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # where a dataclass looks for its annotations
    spec.loader.exec_module(made)
    return made


# --- The model and its text.


@pytest.fixture(scope="module")
def char_gpt() -> ModuleType:
    return module("char_gpt")


def test_an_epoch_has_every_piece_of_the_text_once(char_gpt: ModuleType) -> None:
    text = char_gpt.Text(context=100, limit=20_000)
    epochs = [text.batch(range(n * text.pieces, (n + 1) * text.pieces))[0].tolist() for n in range(2)]
    pieces = text.text[: text.pieces * 100].reshape(-1, 100).tolist()
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(pieces)
    assert epochs[0] != epochs[1] != pieces


def test_what_is_wanted_is_the_next_character(char_gpt: ModuleType) -> None:
    read, wanted = char_gpt.Text(context=100, limit=20_000).batch([3, 7])
    assert read[:, 1:].tolist() == wanted[:, :-1].tolist()


def test_stages_together_are_the_whole_model(char_gpt: ModuleType) -> None:
    settings = char_gpt.Settings(width=8, heads=2, layers=3, context=4)
    whole = char_gpt.GPT(settings)
    stages = [char_gpt.GPT(settings, stage, 2) for stage in range(2)]
    parts = [dict(stage.named_parameters()) for stage in stages]
    assert not parts[0].keys() & parts[1].keys()
    assert {name: p.tolist() for name, p in whole.named_parameters()} == {
        name: p.tolist() for name, p in (parts[0] | parts[1]).items()
    }
    text = char_gpt.torch.arange(8).reshape(2, 4)
    assert stages[1](stages[0](text)).tolist() == whole(text).tolist()


# --- FSDP2, tensor parallel, pipelines.


@full
@pytest.mark.parametrize(
    ("arguments", "smaller"),
    [(["--dp", "2", "--tp", "2"], 3), (["--pp", "2", "--schedule", "1F1B"], 1.9)],
    ids=["fsdp-tp", "pipeline"],
)
def test_a_divided_model_has_the_losses_of_one_process(arguments: list[str], smaller: float, tmp_path: Path) -> None:
    lines = run("parallel.py", "--steps", "6", *arguments, cwd=tmp_path)
    told = re.search(r": ([\d,]+) parameters, ([\d,]+) to ([\d,]+) a rank", lines[0])
    assert told, lines[0]
    whole, _, most = (int(number.replace(",", "")) for number in told.groups())
    assert most < whole / smaller
    losses = [float(found) for found in re.findall(r"loss (\S+)", "\n".join(lines))]
    assert losses[-1] < losses[0] - 0.5
    found = re.fullmatch(r"losses differ by (\S+) at most", lines[-1])
    assert found, lines[-1]
    assert float(found[1]) <= 1e-4


# --- Checkpoints.


@full
def test_training_goes_on_after_a_kill_from_the_newest_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    lines = run("resume.py", "--demo", "2", "3", "--steps", "8", "--every", "2", "--folder", "run", cwd=tmp_path)
    assert lines[0] == "2 ranks, from the beginning: 0 sequences read"
    assert "killed with signal 9 after step 3" in lines
    # Whether a checkpoint was whole when the kill came is for the two to settle; both are right.
    (begun,) = [line for line in lines if line.startswith("3 ranks, from ")]
    assert begun.removeprefix("3 ranks, from ") in (
        "step-000002: 24 sequences read",
        "the beginning: 0 sequences read",
    )
    assert "the same sequences in each step: True" in lines
    found = re.fullmatch(r"losses differ by (\S+) at most from one process without a stop", lines[-1])
    assert found, lines[-1]
    assert float(found[1]) <= 1e-4

    (folder / "step-000008/.metadata").unlink()  # what is written last
    monkeypatch.syspath_prepend(EXAMPLES)
    resume = module("resume")
    whole = resume.newest_whole(folder)
    assert whole == folder / "step-000006"
    assert capsys.readouterr().out == "step-000008 is half-written, and left out\n"
    resume.check_model(whole, resume.Settings())
    with pytest.raises(SystemExit, match=r"another model: blocks.0.down.bias is \(64,\) in it, and \(32,\) here"):
        resume.check_model(whole, resume.Settings(width=32))


# --- Replicas.


@full
def test_replicas_are_left_out_and_come_back(tmp_path: Path) -> None:
    lines = run("replicas.py", "--replicas", "2", "--shards", "2", "--batches", "24", "--deaths", "1", cwd=tmp_path)
    text = "\n".join(lines)
    lost = re.findall(r"^step (\d+): replica (\d) is lost; on with replica (\d)$", text, re.MULTILINE)
    back = re.findall(r"^step (\d+): replica (\d) is back after .*; on with replicas 0, 1$", text, re.MULTILINE)
    assert lost and sorted(who for _, who, _ in lost) == sorted(who for _, who in back)
    assert all(who != other for _, who, other in lost)
    assert lines[-4:-2] == ["24 batches averaged, each once: True", "2 replicas, equal parameters: True"]
    told = re.fullmatch(r"loss (\S+) -> (\S+)", lines[-2])
    assert told, lines[-2]
    assert float(told[2]) < float(told[1]) - 0.3
    found = re.fullmatch(r"losses differ by (\S+) at most from one process that reads the same in each step", lines[-1])
    assert found, lines[-1]
    assert float(found[1]) <= 1e-3
