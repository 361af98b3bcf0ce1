"""Tests of what is said when memory cannot be registered."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from monarch.rdma.backends.ibverbs.devices import NotRegisteredError, _capable, explained, locking, not_registered


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EPERM, errno.EAGAIN])
def test_a_limit_is_named_with_the_ways_to_raise_it(number: int) -> None:
    text = explained("mlx5_0", 1 << 30, OSError(number, "no"), 64 << 10, False)
    assert text.startswith("mlx5_0 cannot register 1073741824 bytes: ")
    assert "may lock 64 KiB (RLIMIT_MEMLOCK)" in text
    for way in (
        "ulimit -l",
        "limits.conf",
        "LimitMEMLOCK=infinity",
        "PropagateResourceLimitsExcept=MEMLOCK",
        "IPC_LOCK",
    ):
        assert way in text


@pytest.mark.parametrize(("limit", "unlimited"), [(-1, False), (64 << 10, True)])
def test_where_there_is_no_limit_none_is_blamed(limit: int, unlimited: bool) -> None:
    text = explained("mlx5_0", 10, OSError(errno.ENOMEM, "no"), limit, unlimited)
    assert "ulimit" not in text and "is not limited here" in text


def test_other_errors_are_shown_as_they_are() -> None:
    assert explained("n", 1, OSError(errno.EFAULT, "Bad address"), 0, False) == "n cannot register 1 bytes: Bad address"
    told = OSError(errno.EINVAL, "ibv_reg_mr failed: Invalid argument")
    assert explained("n", 1, told, 0, False).endswith("(" + str(told) + ")")
    assert explained("n", 1, OSError("odd"), 0, False).startswith("n cannot register 1 bytes: odd")


def test_it_is_an_oserror_whose_text_is_the_sentence() -> None:
    error = not_registered("n", 1, OSError(errno.EFAULT, "Bad address"))
    assert isinstance(error, NotRegisteredError) and error.errno == errno.EFAULT
    assert str(error) == "n cannot register 1 bytes: Bad address"


def test_capabilities(tmp_path: Path) -> None:
    status = tmp_path / "status"
    for text, may in (
        ("CapEff:\t0000000000004000\n", True),
        ("CapEff:\t0000000000003fff\n", False),
        ("Name:\tx\n", False),
    ):
        status.write_text(text)
        assert _capable(status) is may
    assert _capable(tmp_path / "none") is False
    limit, _ = locking()
    assert limit >= -1
