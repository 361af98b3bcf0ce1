"""Bytes <-> frames. No sockets here: `Decoder` says where the next bytes go and is told how many arrived.

    ┌──────────┬─────────┬───────────┐┌────────────┬────────┬──────┬─────────────────┐
    │ head u32 │ body u64│ buffers u32││ lengths u64*│  head  │ body │ buffer, buffer… │
    └──────────┴─────────┴───────────┘└────────────┴────────┴──────┴─────────────────┘
              prefix, 16 bytes

The head is an encoded message (who, to whom, what); the body is the user's pickle and the buffers its out-of-band
memory, both opaque here. Every buffer lands in memory of its own, so the code that unpickles it may own and write it.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence

from msgspec import Struct

from monarch._errors import MessageTooLargeError

Buffer = bytes | bytearray | memoryview

PREFIX = struct.Struct("<IQI")
_LENGTHS = [struct.Struct(f"<{n}Q") for n in range(8)]

HEAD_LIMIT = 16 * 1024 * 1024  # a head is a few hundred bytes; a larger one is not ours
BUFFERS_LIMIT = 16 * 1024  # their lengths must fit into one read; a pickle with more keeps the rest in its body
SMALL = 4096
_READ = 256 * 1024  # one read; frames below it are parsed in place, larger ones are read into memory of their own
_LARGE_PAGES = 4 << 20  # bytes from which large pages are asked for
_MAPPED = 1 << 20  # from here on memory comes from mmap, which does not write zeros first


class FrameError(Exception):
    """The peer sent bytes that are no frame of ours, or one over the limit. The connection must be closed."""


class Frame(Struct, eq=False):  # made in a third of the time of a class of Python, once a message
    """One received frame: the encoded head, the pickled body, its out-of-band buffers."""

    head: Buffer
    body: Buffer
    buffers: Sequence[Buffer]


def encode(head: bytes, body: Buffer = b"", buffers: Sequence[memoryview] = (), limit: int = 0) -> list[Buffer]:
    """The pieces of one frame, to be written in order; `body` and `buffers` are not copied.

    Raises MessageTooLargeError when body and buffers exceed `limit` bytes (0: no limit).
    """
    size = len(body)
    if not buffers:
        if 0 < limit < size:
            raise too_large(size, limit)
        if size < SMALL:
            return [encode_small(head, body)]
        return [PREFIX.pack(len(head), size, 0) + head, body]
    lengths = [buffer.nbytes for buffer in buffers]
    size += sum(lengths)
    if 0 < limit < size:
        raise too_large(size, limit)
    prefix = PREFIX.pack(len(head), len(body), len(lengths)) + _lengths(len(lengths)).pack(*lengths) + head
    return [prefix, body, *buffers]


def encode_small(head: bytes, body: Buffer) -> bytes:
    """One frame without out-of-band buffers, as one piece: for bodies under `SMALL` bytes, cheaper to write than three."""
    return b"".join((PREFIX.pack(len(head), len(body), 0), head, body))


def head_of(pieces: Sequence[Buffer]) -> bytes:
    """The head of a frame that `encode` made: it stands in the first piece."""
    first = bytes(pieces[0])
    head_size, _, count = PREFIX.unpack_from(first)
    start = PREFIX.size + 8 * count
    return first[start : start + head_size]


def too_large(size: int, limit: int) -> MessageTooLargeError:
    """The error for a message of `size` bytes."""
    return MessageTooLargeError(
        f"rejecting oversize frame: the message has {size} bytes and the limit is {limit} "
        f"(setting codec_max_frame_length). Nothing was sent; raise the limit with "
        f"monarch.configure(codec_max_frame_length=...) or send the data in parts"
    )


def _lengths(count: int) -> struct.Struct:
    return _LENGTHS[count] if count < 8 else struct.Struct(f"<{count}Q")


def allocate(size: int) -> Buffer:
    """Writable memory for `size` bytes; large pieces are mapped, so untouched pages cost nothing."""
    if size < _MAPPED:
        return bytearray(size)
    return memoryview(mapped(size))


def mapped(size: int) -> mmap.mmap:
    """Zeroed memory of this process alone, of large pages where the kernel has some: they are there several times sooner,
    and those of Python's default, shared memory, later still."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _LARGE_PAGES:
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # the kernel was built without
            pass
    return memory


def _read_buffer() -> mmap.mmap:
    """Mapped, and of small pages: of thousands of connections each reads small frames into the first page of its own."""
    memory = mapped(_READ)
    try:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    except OSError:  # the kernel was built without
        pass
    return memory


class Decoder:
    """Cuts a stream of bytes into frames.

    Use: read into `get_buffer()`, call `received(n)`, take the frames it returns. `limit` bounds body plus buffers of a
    frame in bytes (0: none), checked before memory is taken for them; a body alone that fits into the read buffer is taken
    as it is. Memory held: of one read buffer the pages that were read into, and what has come of the frame being received,
    with the piece that comes.
    """

    __slots__ = ("_end", "_limit", "_pieces", "_read", "_sizes", "_view", "_window")

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self._read: mmap.mmap | bytes = _read_buffer()
        self._view = memoryview(self._read)
        self._end = 0  # bytes of _read that are filled
        # a frame too large for _read: the pieces that its bytes go to, the sizes of those to come, what is left of the last
        self._pieces: list[Buffer] = []
        self._sizes: Iterator[int] = iter(())
        self._window: memoryview | None = None

    def get_buffer(self) -> memoryview:
        """Returns where the next bytes from the socket belong; never empty."""
        if self._window is not None:
            return self._window
        return self._view[self._end :]

    @property
    def empty(self) -> bool:
        """Returns whether no part of a frame is here."""
        return self._window is None and not self._end

    def release(self) -> None:
        """Gives its memory back; it is of no use afterwards."""
        self._window, self._pieces, self._sizes = None, [], iter(())
        self._view, self._read, self._end = memoryview(b""), b"", 0

    def received(self, count: int) -> list[Frame]:
        """`count` bytes were put into the last `get_buffer()`; returns the frames they complete.

        Raises FrameError when they cannot be a frame; the decoder is of no use afterwards.
        """
        if self._window is not None:
            self._window = self._window[count:]
            if self._window:
                return []
            return self._next_piece()
        return self._cut(self._end + count)

    def _cut(self, end: int) -> list[Frame]:
        frames: list[Frame] = []
        read, view = self._read, self._view
        start = 0
        while end - start >= 16:
            head_size, body_size, count = PREFIX.unpack_from(read, start)
            if not count:
                total = 16 + head_size + body_size
                if start + total > end:
                    if head_size > HEAD_LIMIT or total > _READ:
                        self._check(head_size, body_size, count)
                        if self._begin_large(start, end, head_size, body_size, (), 16):
                            return frames
                    break
                middle = start + 16 + head_size
                start += total
                frames.append(Frame(read[middle - head_size : middle], read[middle:start], ()))
                continue
            self._check(head_size, body_size, count)
            lengths_end = start + 16 + 8 * count
            if lengths_end > end:
                break
            lengths = _lengths(count).unpack_from(read, start + 16)
            total = 16 + 8 * count + head_size + body_size + sum(lengths)
            if self._limit and total > self._limit + head_size + 16 + 8 * count:
                raise self._too_large(total)
            if start + total > end:
                if total > _READ and self._begin_large(start, end, head_size, body_size, lengths, 16 + 8 * count):
                    return frames
                break
            cursor = lengths_end + head_size
            head = read[lengths_end:cursor]
            body = bytes(view[cursor : cursor + body_size])
            cursor += body_size
            buffers: list[Buffer] = []
            for length in lengths:
                buffers.append(bytearray(view[cursor : cursor + length]))
                cursor += length
            frames.append(Frame(head, body, buffers))
            start += total
        if start:
            rest = end - start
            if rest:
                view[:rest] = read[start:end]
            end = rest
        self._end = end
        return frames

    def _check(self, head_size: int, body_size: int, count: int) -> None:
        if head_size > HEAD_LIMIT or count > BUFFERS_LIMIT:
            raise FrameError(f"not a frame of ours: head {head_size}, body {body_size}, {count} buffers")
        if self._limit and body_size > self._limit:
            raise self._too_large(body_size)

    def _too_large(self, size: int) -> FrameError:
        return FrameError(f"a frame of {size} bytes, over the limit of {self._limit} (setting codec_max_frame_length)")

    def _begin_large(
        self, start: int, end: int, head_size: int, body_size: int, lengths: Sequence[int], skip: int
    ) -> bool:
        """Moves the begun frame into memory of its own. False while its head is not complete, if the buffer can hold it."""
        cursor = start + skip
        if cursor + head_size > end and skip + head_size <= _READ:
            return False
        self._sizes = iter((head_size, body_size, *lengths))
        for piece in self._new_pieces():
            have = min(len(piece), end - cursor)
            piece[:have] = self._view[cursor : cursor + have]
            cursor += have
            if have < len(piece):
                self._window, self._end = piece[have:], 0
                return True
        raise AssertionError("a large frame is never complete in the read buffer")

    def _next_piece(self) -> list[Frame]:
        for piece in self._new_pieces():
            if piece:
                self._window = piece
                return []
        pieces, self._window, self._pieces = self._pieces, None, []
        return [Frame(pieces[0], pieces[1], pieces[2:])]

    def _new_pieces(self) -> Iterator[memoryview]:
        """Yields the pieces still to come, each with memory of its own: none is taken before its bytes come."""
        for size in self._sizes:
            try:
                self._pieces.append(allocate(size) if self._pieces else bytearray(size))
            except (OSError, MemoryError, OverflowError, ValueError) as exc:
                raise FrameError(f"no memory for a frame of {size} bytes or more: {exc or 'out of memory'}") from exc
            yield memoryview(self._pieces[-1])
