"""The ranks of a process group as named dimensions."""

from __future__ import annotations

import pytest

from monarch.spmd import torch_device_mesh
from monarch.spmd.device_mesh import sizes_of


def test_sizes() -> None:
    assert sizes_of({"dp": 2, "tp": 4}, 8) == {"dp": 2, "tp": 4}
    assert sizes_of({"dp": -1, "tp": 4}, 8) == {"dp": 2, "tp": 4}
    assert sizes_of({"dp": -1}, 3) == {"dp": 3}
    assert sizes_of({}, 1) == {"rank": 1}
    assert list(sizes_of({"tp": 2, "dp": -1}, 8)) == ["tp", "dp"], "row-major order is that of the names"


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ({"dp": 3}, "a device mesh of dp 3 does not fit the 8 ranks"),
        ({"dp": -1, "tp": 3}, "a device mesh of dp -1 x tp 3 does not fit"),
        ({"dp": -1, "tp": -1}, "dimensions dp, tp are -1: only one"),
        ({"dp": 0}, "dimension 'dp' of a device mesh has 0 ranks"),
        ({"dp": True, "tp": 8}, "dimension 'dp' of a device mesh has True ranks"),
    ],
    ids=["too few", "no whole number", "two open", "none", "no number"],
)
def test_sizes_that_do_not_fit(dims: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sizes_of(dims, 8)


def test_a_process_that_is_in_no_group() -> None:
    pytest.importorskip("torch")
    with pytest.raises(RuntimeError, match="setup_torch_distributed"):
        torch_device_mesh()
