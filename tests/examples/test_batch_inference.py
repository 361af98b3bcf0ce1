"""Each item has one result, in order or not, when ranks are killed and when the program is started again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.examples.running import EXAMPLES, run_program
from tests.support.tiers import full

pytest.importorskip("torch", reason="the example needs torch")


def names(file: Path) -> list[str]:
    return [json.loads(line)["name"] for line in file.read_text().splitlines()]


@full
@pytest.mark.procs
def test_each_item_is_scored_once_though_ranks_are_killed(tmp_path: Path) -> None:
    program, file = EXAMPLES / "batch_inference.py", tmp_path / "batch_inference.jsonl"
    said = run_program(program, "--items", "120", "--steps", "40", cwd=tmp_path).stdout
    assert said.startswith("120 functions, 0 of them in batch_inference.jsonl already\n")
    bits = re.search(r"^trained: (\S+) bits a byte after 40 steps", said, re.MULTILINE)
    assert bits and float(bits[1]) < 6, "8 is what a byte costs that nobody can predict"
    assert "\n120 of 120 items, " in said
    batch = re.search(r"^(\S+) items a batch, 0 sent again", said, re.MULTILINE)
    assert batch and float(batch[1]) > 1
    first = names(file)
    assert first == sorted(first, key=lambda name: (name.split(":")[0], first.index(name)))
    assert len(set(first)) == len(first) == 120

    file.write_text(file.read_text() + '{"name": "torn')
    said = run_program(program, "--items", "240", "--kill", "2", "--as-completed", cwd=tmp_path).stdout
    assert said.startswith("240 functions, 120 of them in batch_inference.jsonl already\n")
    assert "trained" not in said, "all results are of one model"
    assert len(re.findall(r"^  killed rank [01] \(pid \d+\)$", said, re.MULTILINE)) == 2
    both = names(file)
    assert both[:120] == first
    assert len(set(both)) == len(both) == 240

    (tmp_path / "batch_inference.pt").unlink()
    with pytest.raises(AssertionError, match="is gone: give another --file"):
        run_program(program, "--items", "241", cwd=tmp_path)
