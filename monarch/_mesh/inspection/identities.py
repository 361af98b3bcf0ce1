"""Names of actors and processes for people and tools: one text each, the same in every answer, table and report."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from monarch._wire.address import name_of, split_proc_name
from monarch._wire.ids import ActorAddr, Uid, encode58

if TYPE_CHECKING:
    from monarch._runtime.instance import Instance
    from monarch._runtime.proc import Proc

CLIENT = "client"  # the actor that stands for a program; its process makes it unique
_RANK_DIGITS = 4  # base58 digits of a rank behind the key of its mesh
_BRACKETS = str.maketrans("<>", "()")  # a name may have angle brackets; those of an identifier enclose its id


def proc_uid(address: str, mesh_name: str) -> Uid:
    """Names a process: `<mesh>-<rank><uid>`, or a bare name such as `client`."""
    split = split_proc_name(name_of(address))
    return Uid.singleton(name_of(address)) if split is None else Uid(f"{_label(mesh_name)}-{split[1]}", split[0])


def proc_id(proc: Proc) -> str:
    return str(proc_uid(proc.address, proc.mesh.name))


def actor_uid(key: str, name: str, rank: int, singleton: bool) -> Uid:
    """Names an actor within its process. `singleton`: the client, and actors known by their name."""
    if singleton:
        return Uid.singleton(_singleton(key, name))
    return Uid(_label(name), key + encode58(rank, _RANK_DIGITS))


def _singleton(key: str, name: str) -> str:
    return _label(key) if key == name else CLIENT


def _label(name: str) -> str:
    return name.translate(_BRACKETS)


def actor_address(instance: Instance) -> ActorAddr:
    """Returns the name by which an actor is known in every view and on every host."""
    singleton = instance.behaviour is None or instance.key == instance.name
    return address_of(actor_uid(instance.key, instance.name, instance.rank, singleton), instance.proc)


def actor_ids(proc: Proc) -> Callable[[str, str, int, bool], str]:
    """Returns the ids of many actors of one process: `str(actor_address(...))` by key, name, rank and whether it is a
    singleton."""
    where = f".{proc_id(proc)}@{ActorAddr(addr=proc.reached_at, proc_name='x', actor_name='x').addr}"
    ranks: dict[int, str] = {}

    def named(key: str, name: str, rank: int, singleton: bool) -> str:
        if singleton:
            return _singleton(key, name) + where
        digits = ranks.get(rank)
        if digits is None:
            digits = ranks[rank] = encode58(rank, _RANK_DIGITS)
        return f"{_label(name)}<{key}{digits}>{where}"

    return named


def address_of(uid: Uid, proc: Proc) -> ActorAddr:
    """The same of an actor that lives in `proc`, or has."""
    return ActorAddr(addr=proc.reached_at, proc_name=proc_id(proc), actor_name=str(uid))
