"""Python environments that go to hosts with a program."""

from __future__ import annotations

from monarch.tools.utils import conda

__all__ = ["CondaEnvironment"]


class CondaEnvironment:
    """A conda environment: the one at `conda_prefix`, else that which is active when it is asked for."""

    def __init__(self, conda_prefix: str | None = None) -> None:
        self._given = conda_prefix

    @property
    def conda_prefix(self) -> str:
        """The folder of the environment. AssertionError when none was given and none is active."""
        found = self._given or conda.active_env_dir()
        assert found, "no conda environment is active (CONDA_PREFIX is not set): activate one, or give conda_prefix"
        return found
