"""`healthy()`: waits until the ranks of a mesh that this process owns are up.

Two things have to hold: nothing is known against a rank (by the ledger, or its process's state), and each has answered that
it is constructed. The answer comes from the I/O thread of its process: what an actor is busy with does not hold it up. It
comes when that process has heard of every death its owner knows of, and so has begun to leave what cannot end well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monarch._errors import SupervisionError
from monarch._mesh.meshes.owned import Acks, OwnedActors, OwnedProcs
from monarch._mesh.process.owned_meshes import OwnedMeshes
from monarch._runtime.future import Slot, Source
from monarch._runtime.proc import Proc
from monarch._runtime.remote_errors import Raw
from monarch._wire.address import by_ranges
from monarch._wire.message import VALUE, Failure, Probe

_AGAIN = 0.01  # seconds until a rank that has not answered as expected is looked at again: word of it is on its way
_SHOWN = 8  # ranks named in an error

ADVICE = (
    "Nothing restarts it: call restart(failed=True) of the processes, then of the actors, or spawn them in a block "
    "`with RestartPolicy()`"
)


class Health:
    """One a process. Checks are looked at on its I/O thread, where failures are told and restarts begin."""

    def __init__(self, proc: Proc, owned: OwnedMeshes) -> None:
        self._proc = proc
        self._owned = owned
        self._checks: set[_Check] = set()
        owned.changed = self._changed

    def of_actors(self, key: str, ranks: Sequence[int], timeout: float | None) -> Source | None:
        """Ready when these ranks of the mesh `key` are constructed; None when it is not owned here."""
        owned = self._owned.actors.get(key)
        if owned is None:
            return None
        spec = owned.spec
        addresses = [spec.addresses[rank] for rank in ranks]
        return self._begin(
            _Check(self, spec.mesh_name, key, ranks, addresses, lambda: self._actors(owned, ranks)), timeout
        )

    def of_procs(self, uid: str, ranks: Sequence[int], timeout: float | None, ready: Source | None) -> Source | None:
        """Ready when these processes of the mesh `uid` run, and their bootstrap function has returned, on which `ready`
        waits; None when they are not owned here."""
        owned = self._owned.procs.get(uid)
        if owned is None:
            return None
        spec = owned.spec
        addresses = [spec.addresses[rank] for rank in ranks]
        if ready is not None:
            ready.on_ready(self._changed)
        return self._begin(
            _Check(self, repr(spec.name), "", ranks, addresses, lambda: self._procs(owned, ranks, ready)), timeout
        )

    def _actors(self, owned: OwnedActors, ranks: Sequence[int]) -> HealthState:
        with self._owned.lock:
            asked = {rank for ranks in owned.asked for rank in ranks}
            found = self._owned.ledger.standing(owned.spec.key, ranks, owned.group is not None, asked)
        coming = {rank: f"it is being restarted{_because(why)}" for rank, why in found.coming.items()}
        if found.lost is None:
            return HealthState(coming)
        return HealthState(coming, f"{found.lost.report}\n    {ADVICE}" if found.lost.ranks else found.lost.report)

    def _procs(self, owned: OwnedProcs, ranks: Sequence[int], ready: Source | None) -> HealthState:
        if owned.stopping:
            return HealthState({}, f"the mesh {owned.spec.name!r} was stopped")
        coming, ended = owned.standing(ranks)
        for rank, how in list(ended.items()):
            with self._owned.lock:
                if self._owned.ledger.restarted_at(owned.spec.addresses[rank]):
                    coming[rank] = f"its process has ended ({how}), and the policy of its actors restarts it"
                    del ended[rank]
        for rank, how in ended.items():
            return HealthState(
                coming,
                f"process {rank} of mesh {owned.spec.name!r} ({owned.spec.addresses[rank]}): {how}\n    {ADVICE}",
            )
        if ready is not None and owned.is_first(ranks):
            if not ready.ready:
                coming = coming or dict.fromkeys(ranks, "it is being started, or its bootstrap function runs")
            else:
                try:
                    ready.value()
                except Exception as exc:
                    if coming or ready is not owned.started:  # else they were restarted since, and all run
                        return HealthState(coming, f"mesh {owned.spec.name!r} did not start: {exc}")
        return HealthState(coming)

    def _begin(self, check: _Check, timeout: float | None) -> Source:
        loop = self._proc.loop
        self._checks.add(check)
        if timeout is not None:
            timer = loop.call_later(timeout, check.expire(timeout))
            check.on_ready(timer.cancel)
        loop.call_soon(check.look)
        return check

    def _changed(self) -> None:
        if self._checks:
            self._proc.loop.call_soon(self._look)

    def _look(self) -> None:
        for check in list(self._checks):
            check.look()

    def dropped(self) -> None:
        """A Future was dropped, at any point of any thread's work."""
        self._proc.loop.call_soon(self._look)

    def end(self, check: _Check) -> None:
        self._checks.discard(check)

    def ask(self, check: _Check) -> _Answers:
        """Asks each rank of the check whether it is constructed, and has heard of the deaths that are known here."""
        with self._owned.lock:
            meshes = list(self._owned.procs.values())
        over = by_ranges({address: least for owned in meshes for address, least in owned.over().items()})

        def ask(port: int, rank: int) -> None:
            self._proc.post(check.addresses[rank], Probe(check.key, port, rank, bool(check.key), over=over))

        answers = _Answers(check.addresses, ask)
        self._proc.ports.add(answers)
        answers.ask(range(len(check.addresses)))
        answers.on_ready(lambda: self._proc.loop.call_soon(check.answered))
        return answers

    def again(self, check: _Check) -> None:
        if self._proc.closed is not None:
            check.finish(self._proc.closed)
            return
        self._proc.loop.call_later(_AGAIN, check.look)


class HealthState:
    """`coming`: ranks that are not up yet, and why; `lost`: why one of them will not be, "" when all may."""

    __slots__ = ("coming", "lost")

    def __init__(self, coming: dict[int, str], lost: str = "") -> None:
        self.coming = coming
        self.lost = lost


class _Answers(Acks):
    """`refused`: whether a rank said that it is not there, or its process ended."""

    __slots__ = ("refused",)

    def __init__(self, addresses: Sequence[str], ask: Callable[[int, int], None]) -> None:
        super().__init__(addresses, ask)
        self.refused = False

    def receive(self, raw: Raw) -> None:
        self.refused = self.refused or raw[1] != VALUE
        super().receive(raw)

    def gone(self, address: str) -> None:
        self.refused = self.refused or address in self.left()
        super().gone(address)

    def ask(self, ranks: Sequence[int] | range) -> None:  # type: ignore[override]
        before = len(self.left())
        super().ask(ranks)
        self.refused = self.refused or (not self.ready and len(self.left()) < before)

    def give_up(self, error: BaseException) -> None:
        self.refused = True
        super().give_up(error)


class _Check(Slot):
    """One call of `healthy()`. All but `expire` and `abandon` run on the I/O thread."""

    __slots__ = ("_answers", "_dropped", "_health", "_look", "addresses", "key", "name", "ranks")

    def __init__(
        self,
        health: Health,
        name: str,
        key: str,
        ranks: Sequence[int],
        addresses: Sequence[str],
        look: Callable[[], HealthState],
    ) -> None:
        super().__init__(f"healthy() of {name}")
        self.name, self.key, self.ranks, self.addresses = name, key, ranks, addresses
        self._health = health
        self._look = look
        self._answers: _Answers | None = None
        self._dropped = False

    def look(self) -> None:
        """Looks again, for something may have changed."""
        if self.ready or self._dropped:
            self._end()
            return
        found = self._look()
        if found.lost:
            self.finish(SupervisionError(found.lost))
        elif found.coming:
            self._drop_answers()
        elif self._answers is None:
            self._answers = self._health.ask(self)

    def answered(self) -> None:
        answers = self._answers
        if self.ready or answers is None or not answers.ready:
            return  # of an earlier round
        self._answers = None
        if answers.refused:
            self._health.again(self)
            return
        found = self._look()
        if found.coming or found.lost:
            self.look()
        else:
            self.finish(None)

    def finish(self, error: BaseException | None) -> None:
        if error is None:
            self.set()
        else:
            self.fail(error)
        self._end()

    def _end(self) -> None:
        self._drop_answers()
        self._health.end(self)

    def _drop_answers(self) -> None:
        answers, self._answers = self._answers, None
        if answers is not None:
            answers.close()

    def expire(self, timeout: float) -> Callable[[], None]:
        def expired() -> None:
            if not self.ready:
                self.finish(TimeoutError(self._late(timeout)))

        return expired

    def _late(self, timeout: float) -> str:
        found = self._look().coming
        if not found:
            left = set(self._answers.left()) if self._answers is not None else set(self.addresses)
            found = {
                rank: "it has not answered: its constructor runs, or its process is stuck"
                for rank, address in zip(self.ranks, self.addresses, strict=True)
                if address in left
            }
        named = [f"\n    rank {rank}: {found[rank]}" for rank in sorted(found)[:_SHOWN]]
        more = f"\n    and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        return f"after {timeout:g} s {len(found)} of {len(self.ranks)} ranks of {self.name} are not up:{''.join(named)}{more}"

    def abandon(self) -> None:
        self._dropped = True
        self._health.dropped()


def _because(failure: Failure | None) -> str:
    return f" ({failure.event})" if failure is not None and failure.event else ""
