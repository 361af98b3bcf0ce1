"""Connections between Procs that live in one operating-system process, over a network that tests can disturb.

What crosses is what would cross a socket: encoded frames, in the sender's order, cut out of a stream of bytes
by the same decoder. They are delivered on the receiver's loop. Undisturbed, a frame is delivered in the next
turn of that loop.

Rules disturb the paths that match them, by the addresses of sender and receiver, "*" standing for any text.
Chances are drawn from one random generator a path, seeded by the network's seed and the path's addresses:
what happens to the n-th frame from A to B does not depend on what others send. Delays are measured by the
receiver's loop, so a virtual clock governs them. Connections of links between hosts are neither dropped from nor
doubled on, because links rely on TCP, which does neither: cut them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from monarch._linux.locks import RLock
from monarch._wire.frame import Buffer, Decoder, Frame, FrameError
from monarch._wire.transport.base import ConnectionLost, Handler, Reactor
from monarch._wire.waiters import Waiters

_GONE = "the other process closed the connection"


class Rule:
    """A rule for the frames of the paths that match; made by Network's methods. A context manager that
    ends itself."""

    def __init__(
        self,
        network: Network,
        source: str,
        target: str,
        *,
        delay: tuple[float, float] = (0.0, 0.0),
        drop: float = 0.0,
        duplicate: float = 0.0,
        hold: bool = False,
    ) -> None:
        self.source = source
        self.target = target
        self.delay = delay
        self.drop = drop
        self.duplicate = duplicate
        self.hold = hold
        self._network = network

    def matches(self, source: str, target: str) -> bool:
        return fnmatchcase(source, self.source) and fnmatchcase(target, self.target)

    def end(self) -> None:
        """The rule holds no more: what it held back is delivered, in order. May be called again."""
        self._network.remove(self)

    def __enter__(self) -> Rule:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()


class DeliveredFrame(NamedTuple):
    """A frame that was delivered: the addresses of its path, and its encoded head."""

    source: str
    target: str
    head: Buffer


class Network:
    """See the module. Every method may be called from any thread.

    Rules are context managers, in force from their making to their end. When several match a path, their
    delays add up, and a frame passes only if no rule drops or holds it.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._lock = RLock()
        self._listening: dict[str, InprocTransport] = {}
        self._rules: list[Rule] = []
        self._paths: set[_Path] = set()
        self._taps: list[Callable[[DeliveredFrame], None]] = []

    def __repr__(self) -> str:
        facts = self.statistics()
        return f"<Network seed={self.seed} ({', '.join(f'{count} {name}' for name, count in facts.items())})>"

    def statistics(self) -> dict[str, int]:
        """Numbers for people who debug: who listens, connections, frames under way, rules."""
        with self._lock:
            return {
                "listening": len(self._listening),
                "connections": len(self._paths) // 2,
                "frames": sum(len(path.waiting) for path in self._paths),
                "rules": len(self._rules),
            }

    # --- disturbances

    def hold(self, source: str = "*", target: str = "*") -> Rule:
        """Frames from `source` to `target` wait until the rule ends. Their bytes count as queued at the
        sender."""
        return self._add(Rule(self, source, target, hold=True))

    def delay(self, least: float, most: float | None = None, source: str = "*", target: str = "*") -> Rule:
        """Frames take `least` to `most` seconds (default: always `least`). Those of one connection stay in
        order.

        ValueError unless 0 <= least <= most.
        """
        most = least if most is None else most
        if not 0 <= least <= most:
            raise ValueError(f"a delay needs 0 <= least <= most seconds, got {least!r} and {most!r}")
        return self._add(Rule(self, source, target, delay=(least, most)))

    def drop(self, share: float = 1.0, source: str = "*", target: str = "*") -> Rule:
        """Loses that share of the frames, as no Unix socket would do it. ValueError unless 0 <= share <=
        1."""
        return self._add(Rule(self, source, target, drop=_share(share)))

    def duplicate(self, share: float = 1.0, source: str = "*", target: str = "*") -> Rule:
        """Delivers that share of the frames twice. ValueError unless 0 <= share <= 1."""
        return self._add(Rule(self, source, target, duplicate=_share(share)))

    def calm(self) -> None:
        """Ends every rule: from now on frames arrive at once and in order."""
        for rule in list(self._rules):
            rule.end()

    def cut(self, source: str = "*", target: str = "*") -> int:
        """Breaks every connection between the two, whichever dialled; returns how many. Frames under way are
        lost, both ends hear of it. The next send dials anew."""
        with self._lock:
            ends = {
                path.near
                for path in self._paths
                if fnmatchcase(path.source, source) and fnmatchcase(path.target, target)
            }
        count = 0
        for end in ends:
            if not end.lost:
                count += 1
                end.cut("the connection was cut")
        return count

    def vanish(self, address: str) -> None:
        """Takes the one at that address away without a word, as when its machine loses power: the other ends of its
        connections hear nothing of that, or of anything else."""
        with self._lock:
            ends = [path.near for path in self._paths if path.near.transport.address == address]
        for end in ends:
            end.vanish()

    def tap(self, seen: Callable[[DeliveredFrame], None], source: str = "*", target: str = "*") -> Callable[[], None]:
        """`seen(sent)` for each frame between the two, on the receiver's loop once it was handled there.
        Returns what ends that."""

        def matching(sent: DeliveredFrame) -> None:
            if fnmatchcase(sent.source, source) and fnmatchcase(sent.target, target):
                seen(sent)

        def end() -> None:
            with self._lock:
                self._taps = [tap for tap in self._taps if tap is not matching]

        with self._lock:
            self._taps = [*self._taps, matching]
        return end

    def under_way(self) -> int:
        """Frames sent and not delivered that no rule holds back or delays: they arrive in the next turns."""
        with self._lock:
            return sum(path.due_now() for path in self._paths)

    def _add(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        with self._lock:
            if rule not in self._rules:
                return
            self._rules.remove(rule)
            freed = [path for path in self._paths if rule.matches(path.source, path.target)]
        for path in freed:
            path.wake()

    # --- for connections

    def rules(self, source: str, target: str) -> list[Rule]:
        with self._lock:
            return [rule for rule in self._rules if rule.matches(source, target)]

    def held(self, source: str, target: str) -> bool:
        return any(rule.hold for rule in self._rules) and any(rule.hold for rule in self.rules(source, target))

    def listen(self, transport: InprocTransport) -> None:
        with self._lock:
            if transport.address in self._listening:
                raise OSError(98, "Address already in use", transport.address)
            self._listening[transport.address] = transport

    def close(self, transport: InprocTransport) -> None:
        with self._lock:
            if self._listening.get(transport.address) is transport:
                del self._listening[transport.address]

    def connect(self, dialler: InprocTransport, address: str) -> InprocConnection:
        with self._lock:
            acceptor = self._listening.get(address)
            if acceptor is None:
                raise ConnectionRefusedError(111, "Connection refused", address)
            near, far = InprocConnection(dialler, address), InprocConnection(acceptor, "")
            there = _Path(self, dialler.address, address, near, far)
            back = _Path(self, address, dialler.address, far, near)
            near.out, near.into = there, back
            far.out, far.into = back, there
            self._paths |= {there, back}
        return near

    def ends_of(self, transport: InprocTransport) -> list[InprocConnection]:
        """The living ends of connections that belong to it, dialled and accepted."""
        with self._lock:
            return [path.near for path in self._paths if path.near.transport is transport and not path.near.lost]

    def forget(self, path: _Path) -> None:
        with self._lock:
            self._paths.discard(path)

    def delivered(self, sent: DeliveredFrame) -> None:
        for tap in self._taps:
            tap(sent)


def _share(share: float) -> float:
    if not 0 <= share <= 1:
        raise ValueError(f"a share of frames is a number from 0 to 1, got {share!r}")
    return float(share)


class _Path:
    """One direction of a connection, from the end that is `near` to the one that is `far`."""

    def __init__(
        self, network: Network, source: str, target: str, near: InprocConnection, far: InprocConnection
    ) -> None:
        self.network = network
        self.source = source
        self.target = target
        self.near = near
        self.far = far
        self.waiting: deque[tuple[float, bytes]] = deque()  # (earliest delivery, frame); b"" is the end of the stream
        self.room = Waiters()
        self._lock = RLock()  # a finalizer of the program may send in the midst of any step
        self.queued = 0
        self._chances = random.Random(f"{network.seed} {source} {target}")

    def put(self, data: bytes) -> None:
        """Any thread: one frame, or b"" for the end."""
        loop = self.far.loop
        copies, delay = 1, 0.0
        faithful = self.near.transport.of_link or self.far.transport.of_link
        for rule in self.network.rules(self.source, self.target):
            delay += self._chances.uniform(*rule.delay) if rule.delay[1] else 0.0
            if faithful or not data:
                continue
            if rule.drop and self._chances.random() < rule.drop:
                copies = 0
            if rule.duplicate and self._chances.random() < rule.duplicate:
                copies *= 2
        with self._lock:
            due = loop.now() + delay if delay else 0.0
            if self.waiting:
                due = max(due, self.waiting[-1][0])
            size = copies * len(data)
            self.queued += size
            self.waiting.extend([(due, data)] * copies)
        loop.call_soon(self.deliver)

    def wake(self) -> None:
        self.far.loop.call_soon(self.deliver)

    def due_now(self) -> int:
        if self.far.lost or self.network.held(self.source, self.target):
            return 0
        now = self.far.loop.now()
        with self._lock:
            return sum(due <= now for due, _data in self.waiting)

    def deliver(self) -> None:
        """On the far end's loop: whatever may arrive by now."""
        far = self.far
        while self.waiting and not far.lost and not self.network.held(self.source, self.target):
            try:
                due, data = self.waiting[0]
            except IndexError:  # another thread has cut the connection just now
                return
            wait = due - far.loop.now()
            if wait > 0:
                far.loop.call_later(wait, self.deliver)
                return
            far.received(data, self)
            with self._lock:
                if self.waiting:  # else the connection was lost while the frame was handled
                    self.waiting.popleft()
                    self.queued -= len(data)
            self.room.tell()

    def clear(self) -> None:
        """Drops what is under way, so that nothing more arrives."""
        self.network.forget(self)
        with self._lock:
            self.waiting.clear()
            self.queued = 0
        self.room.tell()


class InprocConnection:
    """See `base.Connection`: one end. `send` copies at once, so `wait` and `coalesce_within` mean nothing here."""

    out: _Path
    into: _Path

    def __init__(self, transport: InprocTransport, remote: str) -> None:
        self.remote = remote
        self.route = b""
        self.pid = 0
        self.transport = transport
        self.loop = transport.loop
        self.lost = False
        self._handler = transport.handler
        self._limit, frame_limit = transport.limits()
        self._decoder = Decoder(frame_limit)
        self._reason = ""
        self._lock = RLock()  # a finalizer of the program may send in the midst of any step

    def __repr__(self) -> str:
        state = f"lost: {self._reason}" if self.lost else f"{self.queued} bytes queued"
        return f"<InprocConnection to {self.remote or '?'} ({state})>"

    @property
    def queued(self) -> int:
        """Bytes sent that the other end has not taken."""
        return self.out.queued

    def send_small(self, frame: bytes, coalesce_within: float = 0.0) -> bool:
        try:
            self.send([frame])
        except ConnectionLost:
            return False
        return True

    def send(
        self, pieces: Sequence[Buffer], wait: bool = False, coalesce_within: float = 0.0, owned: bool = False
    ) -> None:
        data = b"".join(pieces)
        with self._lock:  # frames of several threads go into the path whole, and none after the end
            if self.lost:
                raise ConnectionLost(self._reason)
            self.out.put(data)

    def wait_room(self, timeout: float) -> bool:
        return self.out.room.wait_for(lambda: self.lost or self.out.queued < self._limit, timeout)

    def received(self, data: bytes, path: _Path) -> None:
        """On our loop: the bytes of one frame, or the end."""
        if not data:
            self._lose(_GONE, say=False)
            return
        frames: list[Frame] = []
        view = memoryview(data)
        try:
            while view:
                buffer = self._decoder.get_buffer()
                count = min(len(buffer), len(view))
                buffer[:count] = view[:count]
                frames += self._decoder.received(count)
                view = view[count:]
        except FrameError as exc:
            self._lose(str(exc), say=True)
            return
        if frames:
            self._handler.connection_received(self, frames)
        for frame in frames:
            path.network.delivered(DeliveredFrame(path.source, path.target, frame.head))

    def close(self, reason: str) -> None:
        """Any thread. What was sent still arrives, then the other end hears that the connection is gone."""
        self._lose(reason, say=True)

    def finish(self, reason: str) -> None:
        """On our loop, when the other process has ended: takes what it still sent, then closes."""
        self.into.deliver()
        self._lose(reason, say=True)

    def cut(self, reason: str) -> None:
        """Any thread: both ends are lost now, with all that is under way."""
        other = self.out.far
        first, second = sorted((self, other), key=id)
        with first._lock, second._lock:  # at once, as the kernel does: neither end sends into what the other has lost
            fresh = [end for end in (self, other) if not end.lost]
            for end in fresh:
                end.lost, end._reason = True, reason
        self.out.clear()
        self.into.clear()
        for end in fresh:
            end._tell_loss()

    def vanish(self) -> None:
        """Any thread: nothing is sent or taken here any more, and nobody is told."""
        with self._lock:
            self.lost, self._reason = True, "its machine has no power"
        self.out.clear()

    def _lose(self, reason: str, say: bool) -> None:
        with self._lock:
            if self.lost:
                return
            self.lost = True
            self._reason = reason
            if say and not self.out.far.lost:
                self.out.put(b"")
            else:
                self.out.clear()
        self.into.clear()
        self._tell_loss()

    def _tell_loss(self) -> None:
        reason = self._reason
        self.out.room.tell()
        self.loop.call_soon(
            self._decoder.release
        )  # code that remembers the connection is not to keep what it received into
        if self.loop.in_loop():
            self._handler.connection_lost(self, reason)
        else:
            self.loop.call_soon(lambda: self._handler.connection_lost(self, reason))


class InprocTransport:
    """Dials and accepts for one Proc, known in `network` by its address. `limits` as for other transports. `of_link`: it
    makes connections for a link between hosts."""

    def __init__(
        self,
        network: Network,
        address: str,
        loop: Reactor,
        handler: Handler,
        limits: Callable[[], tuple[int, int]],
        of_link: bool = False,
    ) -> None:
        self.network = network
        self.address = address
        self.loop = loop
        self.handler = handler
        self.limits = limits
        self.of_link = of_link

    def dial(self, address: str) -> InprocConnection:
        """A started Connection. ConnectionRefusedError when nobody listens there."""
        return self.network.connect(self, address)

    def listen(self) -> None:
        """Others can dial us from now on. OSError when somebody listens at our address."""
        self.network.listen(self)

    def close(self) -> None:
        """Nobody can dial us any more; connections stay."""
        self.network.close(self)

    def sever(self, reason: str) -> None:
        """Closes every connection of ours."""
        for end in self.network.ends_of(self):
            end.close(reason)
