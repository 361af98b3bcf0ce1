"""Commands of the controller to the workers: one struct a command, encoded by msgspec, many in one message.

A number in place of a struct deletes the tensor of that reference. References are numbers the controller gives out; each
worker has its own tensor for one. What only pickle can carry (functions, arguments) travels beside the commands in the same
message; a command names it by its place there (`payload`).
"""

from __future__ import annotations

import msgspec


class WorkerCommand(msgspec.Struct, array_like=True, gc=False):
    """`ident` names the command in reports of failures: the first reference it makes, or a number of its own."""


class SetPlacement(WorkerCommand, tag=0):
    """Selection of the ranks and the stream of what follows: those of mesh `mesh`, stream `stream`."""

    mesh: int
    stream: int


class Run(WorkerCommand, tag=1):
    """Runs signature `signature` with the tensors `inputs` and the numbers `scalars`.

    Its fresh results are references `ident`, `ident + 1`, ...
    """

    signature: int
    ident: int
    inputs: tuple[int, ...]
    scalars: tuple[int | float | bool, ...] = ()


class Define(WorkerCommand, tag=2):
    """`payload` is a signature.WorkerCall: what Run commands that say `signature` do from here on."""

    signature: int
    payload: int


class Forget(WorkerCommand, tag=3):
    """No Run will name `signature` any more."""

    signature: int


class DefineMesh(WorkerCommand, tag=4):
    """Mesh `mesh` is the ranks `ranks` of the engine's own, in this order, with these names and sizes."""

    mesh: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]


class DefineStream(WorkerCommand, tag=5):
    """Stream `stream` is a thread (and a stream of the device) of its own on each worker."""

    stream: int
    name: str


class Constant(WorkerCommand, tag=6):
    """`payload`, a local tensor, becomes reference `ident`."""

    ident: int
    payload: int


class Fetch(WorkerCommand, tag=7):
    """The worker of rank `rank` answers with its tensors `refs`; the others only say whether theirs are good.

    `taints`: numbers of commands between ranks on which the values depend.
    """

    ident: int
    refs: tuple[int, ...]
    rank: int
    taints: tuple[int, ...] = ()


class Sync(WorkerCommand, tag=8):
    """Answer when all before it is done, with the failures that no answer has told yet."""

    ident: int


class Do(WorkerCommand, tag=9):
    """`payload` is a signature.WorkerCall that runs this once, with the tensors `inputs`; its results are `ident`, `ident +
    1`, ..."""

    ident: int
    payload: int
    inputs: tuple[int, ...] = ()


class AskRanks(WorkerCommand, tag=20):
    """`payload` is a signature.WorkerCall: each rank of mesh `mesh` runs it with the tensors `inputs` and answers with what
    it gave; the others only say whether their inputs are good. `taints` as in Fetch."""

    ident: int
    payload: int
    mesh: int
    inputs: tuple[int, ...] = ()
    taints: tuple[int, ...] = ()


AnyCommand = SetPlacement | Run | Define | Forget | DefineMesh | DefineStream | Constant | Fetch | Sync | Do | AskRanks

Batch = list[int | AnyCommand]

encode = msgspec.msgpack.Encoder(enc_hook=float).encode  # of the kinds of floats that a recorder knows more of
decode = msgspec.msgpack.Decoder(Batch).decode
