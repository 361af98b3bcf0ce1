"""The programs of docs/how-to/trainer.md run: Hugging Face's Trainer and Accelerate in the actors of a mesh,
and timm's training step on distributed tensors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import blocks

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/trainer.md"
PROGRAMS = [block.text for block in blocks(PAGE.read_text()) if block.words[:1] == ["python"]]
pytestmark = pytest.mark.models
pytest.importorskip("transformers", reason="needs transformers: make test-models installs it")
pytest.importorskip("accelerate", reason="needs accelerate: make test-models installs it")

# Run by every process of the program as it starts.
SITE = """
import sys

class Operators:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(Operators)
            from tests.models import torchvision_operators
            torchvision_operators.define()

sys.meta_path.insert(0, Operators)
"""


@pytest.mark.parametrize(
    ("number", "told"),
    [(0, "(2, 8, 79.1703)"), (1, "(2, 0.1039)"), (2, "losses [1.6054, 1.4283, 1.8249, 0.7629]")],
    ids=["Trainer", "Accelerate", "timm"],
)
def test_a_program_of_the_page(number: int, told: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[number])
    (tmp_path / "sitecustomize.py").write_text(SITE)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).resolve().parents[2]}"}
    run = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env=environment,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    said = [line for line in run.stdout.splitlines() if told in line]
    assert said == ([f"{{'gpus': {rank}/2}} {told}" for rank in range(2)] if number < 2 else [told])
    assert f"It prints `{told}`" in PAGE.read_text()
