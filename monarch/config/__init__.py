"""Settings of the runtime, as programs use them.

    monarch.configure(stop_actor_timeout="30s")          # from here on, in this process and what it starts
    with monarch.config.configured(tail_log_lines=50):   # and back
        ...

Settings belong to the process, not to a thread. A value set here hides the environment variable of the
setting, which hides its default. The table is `monarch/config/settings.py`. Durations are text ("1h 30m");
what is given as "90s" reads back as "1m 30s".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from monarch.config import settings
from monarch.config.encoding import Encoding
from monarch.config.transport import BindSpec, ChannelTransport

if TYPE_CHECKING:
    from monarch.config.parametrize import parametrize_config, parametrize_config_pointwise

__all__ = [
    "BindSpec",
    "ChannelTransport",
    "Encoding",
    "clear_runtime_config",
    "configure",
    "configured",
    "get_global_config",
    "get_runtime_config",
    "parametrize_config",
    "parametrize_config_pointwise",
]


def configure(**values: Any) -> None:
    """Set settings for this process and those it starts from now on; others keep what they have.

    All values are checked before any is set. ValueError for an unknown key or a value out of range, TypeError
    for a value of the wrong type, which includes a duration that is not text like "30s".

    Some settings are accepted because programs bring them along, but nothing reads them: their rows in the table say
    so, and a warning is logged the first time one is changed.
    """
    settings.LAYERS.set(values)
    inert = settings.LAYERS.without_effect(values)
    if inert:
        import logging

        logging.getLogger("monarch").warning(
            "monarch.configure: nothing reads %s, so the new value has no effect",
            ", ".join(f"`{name}`" for name in inert),
        )


@contextmanager
def configured(**values: Any) -> Iterator[dict[str, Any]]:
    """`configure(**values)` for a `with` block, which gets all settings as a dict.

    At its end everything that was set since its beginning, by anybody, is forgotten. A process takes the
    values that hold while it is being spawned: to pin them, wait for the mesh's `initialized` inside the
    block.
    """
    before = settings.LAYERS.runtime()
    configure(**values)
    try:
        yield get_global_config()
    finally:
        settings.LAYERS.set_runtime(before)


def get_global_config() -> dict[str, Any]:
    """All settings and their values now in force, as a dict of the caller's own."""
    return settings.LAYERS.show()


def get_runtime_config() -> dict[str, Any]:
    """The same as `get_global_config`: every key, not only those that were set."""
    return settings.LAYERS.show()


def clear_runtime_config() -> None:
    """Forget what `configure` set in this process."""
    settings.LAYERS.set_runtime({})


def __getattr__(name: str) -> Any:
    if name in ("parametrize_config", "parametrize_config_pointwise"):  # tests alone use them
        from monarch.config import parametrize

        found = globals()[name] = getattr(parametrize, name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
