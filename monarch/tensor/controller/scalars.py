"""Which numbers among an operation's arguments cannot change the metadata of what it gives."""

from __future__ import annotations

from typing import Any

# Operations whose numbers say how many elements there are.
_COUNTING = frozenset({"arange", "range", "linspace", "logspace", "arange_start"})
_FREE = frozenset({"number", "float", "Tensor", "Optional[number]", "Optional[float]", "Optional[Tensor]"})


def free(op: Any) -> tuple[frozenset[int], frozenset[str]]:
    """Positions and names of the arguments of `op` (an OpOverload) that are such numbers, by their types in its schema.

    Shapes are given by integers (SymInt) and sequences; a `Scalar` or `float`, or a number in a tensor's place, is a
    value that is computed with. Only torch's
    own operations are trusted to keep to that. Their type (int or float) still counts: it takes part in type promotion.
    """
    schema = op._schema
    namespace, _, name = schema.name.partition("::")
    if namespace != "aten" or name in _COUNTING:
        return frozenset(), frozenset()
    places, names = set(), set()
    for index, argument in enumerate(schema.arguments):
        if str(argument.type) in _FREE:
            names.add(argument.name)
            if not argument.kwarg_only:
                places.add(index)
    return frozenset(places), frozenset(names)
