"""Tests of what is done about the kernel's errors, and what people read of them."""

from __future__ import annotations

import errno

import pytest

from monarch._wire.transport.socket_errors import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    PATIENCE,
    OnAccept,
    OnDial,
    Redial,
    explain,
    on_accept,
    on_dial,
)

SHORT_OF = ["EMFILE", "ENFILE", "ENOMEM", "ENOBUFS", "ENOSPC"]


@pytest.mark.parametrize("name", [*SHORT_OF, "EAGAIN", "EINTR", "EHOSTUNREACH", "ETIMEDOUT"])
def test_what_may_be_better_later_is_dialled_again(name: str) -> None:
    assert on_dial(getattr(errno, name)) is OnDial.LATER


@pytest.mark.parametrize("name", ["ENOENT", "ECONNREFUSED", "ECONNRESET", "EPIPE"])
def test_nobody_there_is_asked_of_the_agent(name: str) -> None:
    assert on_dial(getattr(errno, name)) is OnDial.ENDED
    assert on_dial(None) is OnDial.ENDED


def test_no_other_error_is_taken_for_an_end() -> None:
    """Nobody would ever tell of it."""
    for error in errno.errorcode:
        if on_dial(error) is OnDial.ENDED:
            assert errno.errorcode[error] in (
                "ENOENT",
                "ECONNREFUSED",
                "ECONNRESET",
                "ECONNABORTED",
                "EPIPE",
                "ENOTCONN",
            )
    assert on_dial(errno.EACCES) is on_dial(errno.ENAMETOOLONG) is OnDial.FAIL


def test_accepting_pauses_rather_than_spins() -> None:
    assert on_accept(errno.EAGAIN) is OnAccept.WAIT
    for name in ("ECONNABORTED", "EINTR", "EPROTO", "EPERM"):
        assert on_accept(getattr(errno, name)) is OnAccept.NEXT
    for name in [*SHORT_OF, "EINVAL", "EIO"]:
        assert on_accept(getattr(errno, name)) is OnAccept.PAUSE
    assert on_accept(None) is OnAccept.PAUSE


def test_pauses_grow_and_their_sum_is_bounded() -> None:
    redial, now, pauses = Redial(100.0), 100.0, []
    while (pause := redial.after(now, errno.EMFILE)) is not None:
        pauses.append(pause)
        now += pause
    assert pauses[0] == FIRST_PAUSE and pauses == sorted(pauses[:-1]) + pauses[-1:]
    assert max(pauses) == LONGEST_PAUSE and now == pytest.approx(100.0 + PATIENCE)


def test_what_will_not_be_better_is_given_up_at_once() -> None:
    assert Redial(0.0).after(0.0, errno.EACCES) is None


def test_errors_say_the_way_out() -> None:
    assert "this process may have" in explain(OSError(errno.EMFILE, "")) and "ulimit -n" in explain(
        OSError(errno.EMFILE, "")
    )
    assert "whole machine" in explain(OSError(errno.ENFILE, ""))
    assert "queue of connections is full" in explain(OSError(errno.EAGAIN, ""))
    assert explain(OSError(errno.EACCES, "")) == "Permission denied"
    assert explain(ConnectionError("its own words")) == "its own words"
