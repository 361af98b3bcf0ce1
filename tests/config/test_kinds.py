from __future__ import annotations

import fractions
import re
from typing import Any

import numpy
import pytest

from monarch.config import BindSpec, ChannelTransport, Encoding
from monarch.config.kinds import Count, Duration, EncodingName, Flag, Kind, OrNone, Share, TextKind, TransportKind


@pytest.mark.parametrize(
    ("kind", "value", "kept", "shown"),
    [
        (Flag(), True, True, True),
        (Count(), 0, 0, 0),
        (Count(), numpy.int64(7), 7, 7),
        (Share(), 1, 1.0, 1.0),
        (Share(), fractions.Fraction(1, 4), 0.25, 0.25),
        (Share(), numpy.float32(0.5), 0.5, 0.5),
        (TextKind(), "", "", ""),
        (Duration(), "90s", 90.0, "1m 30s"),
        (EncodingName(), Encoding.Json, Encoding.Json, Encoding.Json),
        (TransportKind(), ChannelTransport.Unix, BindSpec("unix"), BindSpec("unix")),
        (TransportKind(), "tcp://h:1", BindSpec("tcp://h:1"), BindSpec("tcp://h:1")),
        (OrNone(Count()), 3, 3, 3),
        (OrNone(Count()), None, None, None),
        (OrNone(Duration()), "60s", 60.0, "1m"),
        (OrNone(Duration()), None, None, None),
    ],
)
def test_a_value_is_checked_kept_shown_and_carried_as_text(kind: Kind, value: object, kept: Any, shown: Any) -> None:
    got = kind.check(value)
    assert got == kept
    assert type(got) is type(kept)
    assert kind.show(got) == shown
    assert kind.read(kind.write(got)) == kept


@pytest.mark.parametrize(
    ("kind", "value", "error", "why"),
    [
        (Flag(), 1, TypeError, "expected True or False, got int"),
        (Flag(), "true", TypeError, "expected True or False, got str"),
        (Count(), True, TypeError, "expected an int, got bool"),
        (Count(), 1.0, TypeError, "expected an int, got float"),
        (Count(), "1", TypeError, "expected an int, got str"),
        (Count(), None, TypeError, "expected an int, got NoneType"),
        (Count(), -1, ValueError, "expected an int of at least 0"),
        (Count(minimum=1), 0, ValueError, "expected an int of at least 1"),
        (OrNone(Count(minimum=1)), 0, ValueError, "expected an int of at least 1"),
        (Share(), True, TypeError, "expected a float, got bool"),
        (Share(), "x", TypeError, "expected a float, got str"),
        (Share(), 1.5, ValueError, "expected a number from 0 to 1"),
        (Share(), float("nan"), ValueError, "expected a number from 0 to 1"),
        (TextKind(), 3, TypeError, "expected a str, got int"),
        (TextKind(), None, TypeError, "expected a str, got NoneType"),
        (Duration(), 3, TypeError, 'expected a duration such as "30s", got int'),
        (Duration(), 3.5, TypeError, 'expected a duration such as "30s", got float'),
        (Duration(), None, TypeError, 'expected a duration such as "30s", got NoneType'),
        (Duration(), "soon", TypeError, "Invalid duration format 'soon'"),
        (EncodingName(), "Json", TypeError, "expected a member of monarch.config.Encoding, got str"),
        (TransportKind(), 3, TypeError, "expected ChannelTransport enum, BindSpec, or str, got 3 (int)"),
        (TransportKind(), "bogus", ValueError, "invalid str for BindSpec 'bogus'"),
    ],
)
def test_a_wrong_value_is_refused(kind: Kind, value: object, error: type[Exception], why: str) -> None:
    with pytest.raises(error) as caught:
        kind.check(value)
    assert type(caught.value) is error
    assert str(caught.value).startswith(why)


@pytest.mark.parametrize(
    ("kind", "text", "kept"),
    [
        *[(Flag(), text, True) for text in ("1", "true", "True", "YES", " on ")],
        *[(Flag(), text, False) for text in ("0", "false", "False", "no", "OFF")],
        (Count(), " 12 ", 12),
        (Share(), "0.5", 0.5),
        (TextKind(), " as it is ", " as it is "),
        (Duration(), "2m", 120.0),
        (EncodingName(), "Json", Encoding.Json),
        (TransportKind(), "tcp", BindSpec("tcp")),
        (OrNone(Count()), "", None),
    ],
)
def test_text_is_read(kind: Kind, text: str, kept: Any) -> None:
    assert kind.read(text) == kept


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (Flag(), "maybe", "expected one of 1, true, yes, on, 0, false, no, off"),
        (Count(), "many", "expected an int"),
        (Count(), "-1", "expected an int of at least 0"),
        (Share(), "half", "expected a number"),
        (Share(), "2", "expected a number from 0 to 1"),
        (Duration(), "30", "Invalid duration format '30': 30 has no unit"),
        (EncodingName(), "xml", "expected one of bincode, json, multipart"),
        (TransportKind(), "bogus", "invalid str for BindSpec 'bogus'"),
    ],
)
def test_unreadable_text_is_refused(kind: Kind, text: str, why: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(why)):
        kind.read(text)
