"""Tests that run on an imitated card, and once more on a real one where there is one."""

from __future__ import annotations

import pytest


def skip_without_gpu() -> None:
    """Skips the test, and says why, where torch sees no GPU."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip(
            "torch.cuda.is_available() is False: there is no GPU here, or torch was built without CUDA and ROCm"
        )
