"""The meeting of commands that are started once on every node: who takes part, in which order, and what keeps them from it.
Pure: time is an argument, and connections are numbers.

One command leads: the one on the host of the endpoint. The others come to it and become its hosts.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from monarch._text import bracketed

OWN = 0  # the leader's number among the members; the others have those of their connections
_DEFAULT_PORT = 29400  # torchrun's, of an endpoint without one
_LIMIT, _LAST_CALL = 600.0, 30.0  # seconds, torchrun's
_BACKENDS = ("c10d", "static")
_NAMED = 8  # hosts in a text


class MeetingPlace(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint, and what was said of the meeting there. `limit`: seconds until least have come; `last_call`: seconds for
    the others after that; `leads`: whether this host is the endpoint's, None to find out."""

    host: str
    port: int
    node_rank: int | None = None
    limit: float = _LIMIT
    last_call: float = _LAST_CALL
    leads: bool | None = None
    local_address: str = ""

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


def place(endpoint: str, backend: str, configuration: str, node_rank: str | None, local_address: str) -> MeetingPlace:
    """Reads --rdzv-endpoint and what belongs to it. ValueError for what does not fit."""
    if backend not in _BACKENDS:
        raise ValueError(
            f"--rdzv-backend {backend}: monarch run meets by itself at HOST:PORT, so write --rdzv-backend c10d "
            f"--rdzv-endpoint HOST:PORT, where HOST is one of the nodes"
        )
    host, port = _endpoint(endpoint)
    said = dict(_settings(configuration))
    rank = None if node_rank is None else _whole("--node-rank", node_rank)
    limit = said.get("join_timeout", said.get("timeout"))
    is_host = said.get("is_host")
    return MeetingPlace(
        host=host,
        port=port,
        node_rank=rank,
        limit=_LIMIT if limit is None else _seconds("--rdzv-conf join_timeout", limit),
        last_call=_seconds("--rdzv-conf last_call_timeout", said.get("last_call_timeout", str(_LAST_CALL))),
        leads=None if is_host is None else _truth(is_host),
        local_address=local_address,
    )


class Joining(msgspec.Struct, frozen=True, tag="join"):
    """A command that comes to the meeting. `port`: where its worker listens; `address`: at which host, "" where it is seen
    to come from; `same`: a digest of each thing that all commands have to say alike."""

    name: str
    run_id: str
    least: int
    most: int
    node_rank: int | None
    port: int
    address: str
    same: dict[str, str]


class NotAdmitted(msgspec.Struct, frozen=True, tag="refused"):
    """The answer to a command that cannot take part, or whose meeting has failed."""

    why: str


class Met(msgspec.Struct, frozen=True, tag="met"):
    """The word that all are there. `leader`: the name of the host that leads."""

    leader: str
    nodes: int


class PassedSignal(msgspec.Struct, frozen=True, tag="signal"):
    """A signal that another command than the leader was given."""

    number: int


class RunEnded(msgspec.Struct, frozen=True, tag="ended"):
    """The end of the run, with its exit status."""

    status: int


Message = Joining | NotAdmitted | Met | PassedSignal | RunEnded


def digests(said: Mapping[str, Any]) -> dict[str, str]:
    """Returns what stands for each thing that all have to say alike."""
    return {name: hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:16] for name, value in said.items()}


class Meeting:
    """The leader's list of who has come. `order`: the members as nodes 0, 1, ... once all are there; `error`: why there
    will be no run."""

    def __init__(self, own: Joining, where: MeetingPlace, now: float) -> None:
        self.order: list[int] | None = None
        self.error = ""
        self._own = own
        self._where = where
        self._limit = now + where.limit
        self._due = self._limit
        self._members: dict[int, Joining] = {}
        self.came(OWN, own, now)

    @property
    def over(self) -> bool:
        return self.order is not None or bool(self.error)

    @property
    def due(self) -> float:
        """The time at which `passed` is to be called."""
        return self._due

    def came(self, number: int, joining: Joining, now: float) -> str:
        """Takes in a command. Returns why it cannot take part; "" when it does."""
        own = self._own
        if joining.run_id != own.run_id:
            return (
                f"the run --rdzv-id {own.run_id} meets at {self._where}, and this is --rdzv-id {joining.run_id}: give the "
                f"commands of a run the same one, and each run an endpoint of its own"
            )
        if self.error:
            return self.error
        if self.order is not None:
            return (
                f"--nnodes {_nodes(own)}, and {len(self.order)} commands have met at {self._where} and run "
                f"({self._names()}): {joining.name} is one more. Say --nnodes with the number of commands that are started"
            )
        if (wrong := self._wrong(joining)) != "":
            self.error = wrong
            return wrong
        self._members[number] = joining
        if len(self._members) == own.most:
            self._close()
        elif len(self._members) == own.least:
            self._due = min(self._limit, now + self._where.last_call)
        return ""

    def left(self, number: int) -> None:
        """Forgets a command that went away before all were there."""
        if self.order is None:
            self._members.pop(number, None)
            if len(self._members) < self._own.least:
                self._due = self._limit

    def passed(self, now: float) -> None:
        """Ends the waiting when its time is over."""
        if self.over or now < self._due:
            return
        if len(self._members) >= self._own.least:
            self._close()
            return
        self.error = (
            f"--nnodes {_nodes(self._own)}, and {len(self._members)} of {self._own.least} commands came to {self._where} "
            f"within {self._where.limit:g} s: {self._names()}{self._missing()}. Start the same command on every node; "
            f"--rdzv-conf join_timeout=SECONDS waits longer"
        )

    def member(self, number: int) -> Joining:
        return self._members[number]

    def _close(self) -> None:
        self.order = sorted(self._members, key=self._place_of)

    def _place_of(self, number: int) -> tuple[int, int, str, int]:
        """Sorts by --node-rank; without one the leader is first, and the others follow by their names."""
        member = self._members[number]
        return (-1 if member.node_rank is None else member.node_rank, number != OWN, member.name, number)

    def _wrong(self, joining: Joining) -> str:
        own = self._own
        if (joining.least, joining.most) != (own.least, own.most):
            return (
                f"the commands at {self._where} say different numbers of nodes: --nnodes {_nodes(own)} on {own.name} and "
                f"--nnodes {_nodes(joining)} on {joining.name}. Say the same on all"
            )
        if differing := sorted(name for name in own.same if own.same[name] != joining.same.get(name)):
            return (
                f"the commands on {own.name} and {joining.name} differ in {', '.join(differing)}: one of them starts the "
                f"ranks of all nodes, so all have to say the same"
            )
        rank = joining.node_rank
        if rank is not None and not 0 <= rank < own.most:
            return f"--node-rank {rank} on {joining.name}: with --nnodes {_nodes(own)} it is 0 to {own.most - 1}"
        for other in self._members.values():
            if (other.node_rank is None) != (rank is None):
                with_rank, without = (joining, other) if rank is not None else (other, joining)
                return (
                    f"{with_rank.name} says --node-rank {with_rank.node_rank} and {without.name} says none: give it to all "
                    f"commands, or to none"
                )
            if rank is not None and other.node_rank == rank:
                return f"{other.name} and {joining.name} both say --node-rank {rank}: each node has its own"
        return ""

    def _missing(self) -> str:
        ranks = {member.node_rank for member in self._members.values()}
        if None in ranks:
            return ""
        return f"; missing: --node-rank {', '.join(str(rank) for rank in range(self._own.most) if rank not in ranks)}"

    def _names(self) -> str:
        names = [self._members[number].name for number in self.order or self._members]
        return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def addresses(order: Sequence[int], seen: Mapping[int, str], reached: str) -> list[str]:
    """Returns at which host each worker is dialled. `seen`: where a member comes from, "" for the leader; `reached`: the
    leader's address that others have dialled. A member on the leader's machine may come from its loopback address, which
    means another machine to the others."""
    hosts = [seen[number] or reached for number in order]
    outside = next((host for host in (*hosts, reached) if not _is_loopback(host)), None)
    if outside is None:
        return hosts
    return [reached if _is_loopback(host) and not _is_loopback(reached) else host for host in hosts]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _nodes(joining: Joining) -> str:
    return str(joining.most) if joining.least == joining.most else f"{joining.least}:{joining.most}"


def _endpoint(text: str) -> tuple[str, int]:
    """HOST, HOST:PORT, [IPv6]:PORT or a bare IPv6 address."""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if not host or (port and not port.isdecimal()):
        raise ValueError(f"--rdzv-endpoint is HOST:PORT, got {text!r}")
    number = int(port) if port else _DEFAULT_PORT
    if not 1 <= number <= 65535:
        raise ValueError(
            f"--rdzv-endpoint {text}: commands on several nodes have to know the port at which they meet; give one from 1 "
            f"to 65535 that is free on {host}"
        )
    return host, number


def _settings(text: str) -> list[tuple[str, str]]:
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"--rdzv-conf is NAME=VALUE,NAME=VALUE; got {part!r}")
        found.append((name.strip(), value.strip()))
    return found


def _seconds(what: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"{what} is a number of seconds, got {text!r}")
    return value


def _truth(text: str) -> bool:
    if text.lower() in ("1", "true", "t", "yes", "y"):
        return True
    if text.lower() in ("0", "false", "f", "no", "n"):
        return False
    raise ValueError(f"--rdzv-conf is_host is true or false, got {text!r}")


def _whole(what: str, text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{what} is the number of this node, from 0 on; got {text!r}")
    return int(text)
