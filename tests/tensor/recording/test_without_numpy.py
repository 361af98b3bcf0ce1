"""Recorded functions where numpy is not installed: README's install has none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from monarch.tensor import function
from monarch.tensor.controller.activation import no_modes
from tests.support.scripts import ROOT, Scripts
from tests.support.tiers import full
from tests.tensor.recording.looked_at import number

LOCAL = torch.Generator()


@pytest.fixture
def no_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(self: torch.Tensor) -> None:
        raise RuntimeError("Numpy is not available")  # as torch says it

    monkeypatch.setattr(torch.Tensor, "numpy", unavailable)


def test_a_function_is_recorded(loop: Any, no_numpy: None) -> None:
    recorded = function(lambda x: (x * 2).sum())
    assert [number(loop, recorded(torch.ones(2))) for _ in range(4)] == [4.0] * 4
    assert recorded.traces == 1


def test_a_generator_of_this_process_is_noticed(loop: Any, no_numpy: None) -> None:
    def drawn(x: Any) -> Any:
        with no_modes():
            factor = float(torch.rand((), generator=LOCAL))
        return x * factor

    recorded = function(drawn)
    LOCAL.manual_seed(5)
    with pytest.warns(RuntimeWarning, match=r"a generator of torch in this process .* in drawn"):
        found = [number(loop, recorded(torch.ones(1))) for _ in range(4)]
    LOCAL.manual_seed(5)
    with no_modes():
        assert found == [float(torch.rand((), generator=LOCAL)) for _ in range(4)]


@full
def test_a_program(scripts: Scripts, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    (hidden / "numpy").mkdir(parents=True)
    error = "raise ModuleNotFoundError(\"No module named 'numpy'\", name='numpy')"
    (hidden / "numpy" / "__init__.py").write_text(error)
    done = scripts.run(
        """
        import sys
        import torch
        import monarch
        from monarch.actor import this_host

        procs = this_host().spawn_procs({"gpus": 2})

        @monarch.function
        def step(model, x):
            loss = torch.nn.functional.dropout(model(x), 0.0).square().mean()
            return loss, torch.autograd.grad(loss, list(model.parameters()))

        with procs.activate():
            torch.manual_seed(3)
            model, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
            losses = {float(monarch.inspect(step(model, x)[0])) for _ in range(5)}
        print(len(losses), step.traces, "numpy" in sys.modules)
        procs.stop().get()
        """,
        env={"PYTHONPATH": os.pathsep.join((str(ROOT), str(hidden)))},
    )
    assert done.stdout == "1 1 False\n"
