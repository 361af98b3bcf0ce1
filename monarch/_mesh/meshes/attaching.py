"""Waiting for hosts that are being attached."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from monarch._runtime.log_thread import log
from monarch._runtime.proc import Proc
from monarch._runtime.remote_errors import Raw
from monarch._runtime.replies import Entry, Target
from monarch._wire import os_text
from monarch._wire.address import agent_at, host_of
from monarch._wire.message import Attach, AttachedHost, Failure, HostReplaced, ProcEnded
from monarch._wire.peer import PeerEnded
from monarch.config import settings

logger = logging.getLogger("monarch")
PATIENCE = 5.0  # seconds that a host which can be reached gets to answer, beyond the time for reaching it
_FAILED = "attach failed: config push failed during attach to {}: {}"


class Attaching(Entry):
    """Waits until every host has answered Attach."""

    __slots__ = ("_error", "_facts", "_proc")

    def __init__(self, proc: Proc, hosts: Sequence[str]) -> None:
        super().__init__(Target("attach_to_workers", [agent_at(host) for host in hosts], _failure_of))
        self._proc = proc
        self._facts: list[AttachedHost | None] = [None] * len(hosts)
        self._error: BaseException | None = None

    def ask(self, env: dict[str, str], moves: Sequence[HostReplaced] = (), replaces: str = "") -> None:
        """Asks each host, by an Attach."""
        proc, config = self._proc, msgspec.msgpack.encode(settings.snapshot())
        number = proc.ports.add(self)
        self.expire_after(proc, settings.mesh_attach_config_timeout() + PATIENCE)
        assert self.target is not None
        for rank, address in enumerate(self.target.addresses):
            if address in proc.suspected:
                self.suspected(address, proc.suspected[address])
            try:
                proc.post(address, Attach(config, os_text.encode(env), number, rank, replaces, list(moves)))
            except PeerEnded as exc:
                self.fail(_failure_of(address, exc.why))

    def receive(self, raw: Raw) -> None:
        self._facts[raw[0]] = msgspec.msgpack.decode(raw[2], type=AttachedHost)
        if all(facts is not None for facts in self._facts):
            self.close()
            self.set_ready()

    def unanswered(self) -> list[int]:
        return [rank for rank, facts in enumerate(self._facts) if facts is None]

    def suspected(self, address: str, why: str) -> None:
        assert self.target is not None
        rank = self.target.addresses.index(address)
        if why and self._facts[rank] is None:
            count = len(self._facts)
            log(logger, logging.WARNING, "host %s (rank %d of %d in the mesh of attach_to_workers) cannot be reached yet: %s",
                host_of(address), rank, count, why)  # fmt: skip

    def fail(self, failure: Failure) -> None:
        self.give_up(RuntimeError(failure.report))

    def give_up(self, error: BaseException) -> None:
        if not self.ready:
            self._error = self._late() if isinstance(error, TimeoutError) else error
            self.close()
            self.set_ready()

    def _late(self) -> RuntimeError:
        assert self.target is not None
        silent = ", ".join(host_of(self.target.addresses[rank]) for rank in self.unanswered())
        limit = settings.mesh_attach_config_timeout()
        why = f"it did not answer within {limit:g} s (setting mesh_attach_config_timeout)"
        return RuntimeError(_FAILED.format(silent, why))

    def value(self) -> list[AttachedHost | None]:
        if self._error is not None:
            raise self._error
        return self._facts


def _failure_of(address: str, ended: ProcEnded) -> Failure:
    return Failure(_FAILED.format(host_of(address), ended.detail))
