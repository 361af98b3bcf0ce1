"""Frames survive whatever a stream socket does to them; what is none is refused before it costs memory."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monarch._errors import MessageTooLargeError
from monarch._wire import frame
from monarch._wire.frame import Decoder, Frame, FrameError, encode

READ = 256 * 1024  # what the decoder reads at once: the sizes around it take other paths
Plain = tuple[bytes, bytes, tuple[bytes, ...]]


def plain(received: Frame) -> Plain:
    return bytes(received.head), bytes(received.body), tuple(bytes(piece) for piece in received.buffers)


def wire(head: bytes, body: bytes = b"", buffers: tuple[bytes, ...] = ()) -> bytes:
    return b"".join(bytes(piece) for piece in encode(head, body, [memoryview(b) for b in buffers]))


def feed(decoder: Decoder, stream: bytes, cuts: Any = ()) -> list[Frame]:
    """Gives the decoder `stream` in pieces that end at `cuts`, as a socket would; returns the frames."""
    frames: list[Frame] = []
    rest = memoryview(stream)
    edges = [*sorted(set(cuts)), len(stream)]
    position = 0
    for edge in edges:
        while position < edge:
            buffer = decoder.get_buffer()
            assert len(buffer) > 0
            count = min(len(buffer), edge - position)
            buffer[:count] = rest[position : position + count]
            position += count
            frames += decoder.received(count)
    return frames


sizes = st.one_of(st.integers(0, 40), st.sampled_from([4095, 4096, READ - 17, READ - 16, READ - 15, READ, READ + 1]))
blobs = sizes.map(lambda size: random.Random(size).randbytes(size))
small = st.binary(max_size=40)
frames_of = st.lists(
    st.tuples(st.one_of(small, small, blobs), blobs, st.lists(blobs, max_size=3).map(tuple)), max_size=5
)


@given(frames_of, st.data())
def test_frames_are_the_same_wherever_the_stream_is_cut(sent: list[Plain], data: st.DataObject) -> None:
    stream = b"".join(wire(*one) for one in sent)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    assert [plain(one) for one in feed(Decoder(), stream, cuts)] == sent


@given(st.lists(st.tuples(small, small, st.lists(small, max_size=9).map(tuple)), min_size=1, max_size=4))
def test_frames_are_the_same_byte_by_byte(sent: list[Plain]) -> None:
    stream = b"".join(wire(*one) for one in sent)
    assert [plain(one) for one in feed(Decoder(), stream, range(len(stream)))] == sent


@pytest.mark.parametrize(
    ("head", "body", "buffers"),
    [
        (0, 5 << 20, ()),
        (9, 0, (5 << 20,)),
        (9, 1 << 20, (0, 3 << 20, 0, 70_000)),
        (9, (1 << 20) - 1, ((1 << 20) + 1,)),
        (READ + 100, 0, ()),  # a head that no single read holds: a report with a long text in it
        (3 << 20, 12, ()),
        (READ, 100, (5, 0, READ)),
        (READ - 16, 0, ()),
    ],
)
@pytest.mark.parametrize("step", [16 * 1024, READ + 7, 1 << 30])
def test_large_frames(head: int, body: int, buffers: tuple[int, ...], step: int) -> None:
    sent: Plain = (os.urandom(head), os.urandom(body), tuple(os.urandom(size) for size in buffers))
    small: Plain = (b"next", b"frame", ())
    stream = wire(*small) + wire(*sent) + wire(*small)
    got = feed(Decoder(), stream, range(0, len(stream), step))
    assert [plain(one) for one in got] == [small, sent, small]


def test_many_out_of_band_buffers() -> None:
    sent: Plain = (b"head", b"body", tuple(b"%d" % n for n in range(frame.BUFFERS_LIMIT)))
    stream = wire(*sent)
    assert [plain(one) for one in feed(Decoder(), stream, (5, 17, 100_000))] == [sent]


@pytest.mark.parametrize("size", [10, 300_000, 2 << 20])
def test_buffers_can_be_written_and_belong_to_nobody_else(size: int) -> None:
    stream = wire(b"h", b"b", (bytes(size), bytes(size)))
    decoder = Decoder()
    first, second = feed(decoder, stream * 2)
    views = [memoryview(buffer) for received in (first, second) for buffer in received.buffers]
    assert not any(view.readonly for view in views)
    for number, view in enumerate(views, 1):
        view[:] = bytes([number]) * size
    assert [view[0] for view in views] == [1, 2, 3, 4]
    feed(decoder, stream)  # what arrives later lands elsewhere
    assert [bytes(view[-1:]) for view in views] == [b"\1", b"\2", b"\3", b"\4"]


def test_encoding_copies_neither_body_nor_buffers() -> None:
    body, memory = bytes(5000), memoryview(bytearray(9))
    pieces = encode(b"head", body, [memory])
    assert pieces[1] is body and pieces[2] is memory
    assert encode(b"head", body)[1] is body
    assert len(encode(b"head", b"small")) == 1  # one piece costs less to write than its copy


@pytest.mark.parametrize(("body", "buffers"), [(11, ()), (5, (6,)), (0, (11,)), (11, (0,)), (4, (3, 4))])
def test_the_sender_is_told_of_a_message_over_the_limit(body: int, buffers: tuple[int, ...]) -> None:
    views = [memoryview(bytes(size)) for size in buffers]
    with pytest.raises(MessageTooLargeError, match=r"has 11 bytes and the limit is 10 .*codec_max_frame_length"):
        encode(b"h" * 100, bytes(body), views, limit=10)
    assert encode(b"h" * 100, bytes(body), views, limit=11)  # the limit itself is allowed, and the head is free
    assert encode(b"h" * 100, bytes(body), views)


def header(head: int, body: int, *buffers: int, count: int | None = None) -> bytes:
    count = len(buffers) if count is None else count
    return frame.PREFIX.pack(head, body, count) + b"".join(size.to_bytes(8, "little") for size in buffers)


@pytest.mark.parametrize(
    "start",
    [
        header(frame.HEAD_LIMIT + 1, 0),
        header(frame.HEAD_LIMIT + 1, 0, 1),
        header(4, 10_000_001),
        header(4, 10_000_001, 0),
        header(4, 0, 10_000_001),
        header(4, 5_000_000, 5_000_001),
        header(4, 0, 2**63, 2**63),
        header(4, 2**64 - 1),
        header(4, 0, count=frame.BUFFERS_LIMIT + 1),
        header(4, 0, count=2**32 - 1),
        b"\xff" * 16,
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
@pytest.mark.parametrize("cut", [0, 7, 16])
def test_a_frame_over_the_limit_is_refused_before_memory_is_taken(
    monkeypatch: pytest.MonkeyPatch, start: bytes, cut: int
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(frame, "allocate", taken.append)
    with pytest.raises(FrameError):
        feed(Decoder(limit=10_000_000), start + bytes(8), [cut])
    assert taken == []


@pytest.mark.parametrize(
    "start", [header(4, 2**63), header(4, 2**64 - 1), header(4, 0, 2**62), header(4, 0, 2**63, 2**63)]
)
def test_a_size_that_no_machine_has_is_a_frame_error_without_a_limit_too(start: bytes) -> None:
    with pytest.raises(FrameError, match="no memory for a frame of"):
        feed(Decoder(), start + bytes(8))


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
@example(bytes(16), [])
@example(header(0, 0, 0), [])
def test_garbage_is_refused_or_waited_for_within_the_limit(garbage: bytes, cuts: list[int]) -> None:
    limit = 1 << 20
    with pytest.MonkeyPatch.context() as patch:
        taken: list[int] = []
        allocate = frame.allocate

        def counted(size: int) -> frame.Buffer:
            taken.append(size)
            return allocate(size)

        patch.setattr(frame, "allocate", counted)
        decoder = Decoder(limit)
        try:
            feed(decoder, garbage, [cut for cut in cuts if cut <= len(garbage)])
        except FrameError:
            pass
        else:
            assert len(decoder.get_buffer()) > 0
        assert sum(taken) <= limit


def test_memory_for_a_buffer_is_taken_when_its_bytes_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that is never sent costs whoever waits for it no more than what came."""
    taken: list[int] = []
    allocate = frame.allocate
    monkeypatch.setattr(frame, "allocate", lambda size: taken.append(size) or allocate(size))
    decoder, size = Decoder(limit=10 << 30), 600_000
    feed(decoder, header(4, 0, *[size] * frame.BUFFERS_LIMIT) + bytes(4), [])
    assert taken == [0, size]
    feed(decoder, bytes(3 * size), [])
    assert taken == [0, *[size] * 4]


def test_a_connection_of_small_frames_takes_a_page_and_not_its_whole_buffer() -> None:
    """A process has a connection to each of a thousand others."""

    def private() -> int:
        with open("/proc/self/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Private_Dirty:")) << 10

    small = b"".join(encode(b"head", b"body"))
    before = private()
    decoders = [Decoder() for _ in range(512)]
    for decoder in decoders:
        decoder.get_buffer()[: len(small)] = small
        assert len(decoder.received(len(small))) == 1
    assert private() - before < len(decoders) * 16 * 1024


def test_the_limit_counts_neither_head_nor_lengths() -> None:
    sent: Plain = (b"h" * 5000, b"b" * 600_000, (b"x" * 400_000,))
    assert [plain(one) for one in feed(Decoder(limit=1_000_000), wire(*sent))] == [sent]
    with pytest.raises(FrameError):
        feed(Decoder(limit=999_999), wire(*sent))
