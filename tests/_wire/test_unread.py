"""Messages that are read even if everybody drops them."""

from __future__ import annotations

from monarch._wire import codec
from monarch._wire.unpickling import MARK, MARK_BEHIND, UnreadBody, is_marked


def test_only_what_was_dropped_unread_is_left() -> None:
    body, buffers = codec.encode([1, bytearray(8)])
    left: list[UnreadBody] = []
    read = UnreadBody(body, [*buffers, MARK], left.append)
    assert codec.decode(read, read.buffers) == [1, bytearray(8)]
    del read
    assert left == []
    UnreadBody(body, [*buffers, MARK], left.append)
    assert [codec.decode(one, one.buffers) for one in left] == [[1, bytearray(8)]]
    left.clear()  # it is not left a second time
    assert left == []


def test_a_mark_behind_a_pickle_is_read_by_nobody() -> None:
    body, _ = codec.encode([1, "two"])
    left: list[UnreadBody] = []
    assert not body.endswith(MARK_BEHIND)
    UnreadBody(body + MARK_BEHIND, (), left.append)
    assert codec.decode(left[0], ()) == codec.decode(body + MARK_BEHIND, ()) == [1, "two"]


def test_the_mark_is_no_buffer_of_an_object() -> None:
    numpy_like = memoryview(bytearray(codec.OUT_OF_BAND))
    assert is_marked([numpy_like, MARK]) and not is_marked([numpy_like])
