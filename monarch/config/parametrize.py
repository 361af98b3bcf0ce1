"""Run a test under several settings: decorators for pytest, which is imported only when one is used."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Iterable
from typing import Any

from monarch.config import settings

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def parametrize_config(**values: Iterable[Any]) -> Decorator:
    """Run the test once for each combination, as in ``@parametrize_config(tail_log_lines={0, 5})``.

    ValueError when there is nothing to combine, and the errors of `configure`, at the decoration.
    """
    columns = _columns("parametrize_config", values)
    return _parametrize(values, itertools.product(*columns))


def parametrize_config_pointwise(**values: Iterable[Any]) -> Decorator:
    """Run the test with all first values, then with all second ones, and so on; the lists are equally long.

    ValueError when they are not or when there are none, and the errors of `configure`, at the decoration.
    """
    columns = _columns("parametrize_config_pointwise", values)
    lengths = {key: len(column) for key, column in zip(values, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{key} has {length}" for key, length in lengths.items())
        raise ValueError(f"parametrize_config_pointwise: the lists must be equally long, but {shown}")
    return _parametrize(values, zip(*columns, strict=True))


def _columns(what: str, values: dict[str, Iterable[Any]]) -> list[list[Any]]:
    if not values:
        raise ValueError(f"{what}: give at least one setting, for example {what}(tail_log_lines=[0, 5])")
    columns = []
    for key, given in values.items():
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise TypeError(f"{what}: {key} must be a set or list of values, got {given!r}")
        # A set has no order of its own, and the order makes the names of the tests.
        column = sorted(given, key=repr) if isinstance(given, set | frozenset) else list(given)
        if not column:
            raise ValueError(f"{what}: {key} has no values")
        columns.append(column)
    return columns


def _parametrize(keys: Collection[str], rows: Iterable[tuple[Any, ...]]) -> Decorator:
    import pytest

    cases = [dict(zip(keys, row, strict=True)) for row in rows]
    for case in cases:
        settings.LAYERS.check(case)
    parameter = "config_" + "_".join(keys)
    names = [",".join(f"{key}={value}" for key, value in case.items()) for case in cases]
    mark = pytest.mark.parametrize(parameter, cases, ids=names)
    return lambda test: mark(_under(parameter, test))


def _under(parameter: str, test: Callable[..., Any]) -> Callable[..., Any]:
    """`test` with one more argument, the settings it runs under."""
    from monarch.config import configured

    if inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with configured(**kwargs.pop(parameter)):
                return await test(*args, **kwargs)
    else:

        @functools.wraps(test)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with configured(**kwargs.pop(parameter)):
                return test(*args, **kwargs)

    signature = inspect.signature(test)
    added = inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY)
    before = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    after = [p for p in signature.parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD]
    wrapper.__signature__ = signature.replace(parameters=[*before, added, *after])  # type: ignore[attr-defined]
    return wrapper
