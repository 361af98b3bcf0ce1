"""Questions of the dashboard to the program itself: what recorded rows cannot tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from monarch._mesh.inspection.diagnosis import Diagnosis
from monarch._mesh.output.kept import OutputPage, OutputRequest
from monarch.dashboard.pages.icicle import RankStack


class LiveStacks(NamedTuple):
    """The place of every thread. `silent`: who did not say, and why."""

    stacks: Sequence[RankStack]
    silent: Mapping[str, str]


class LiveData(Protocol):
    """A program that runs. Every method may raise RuntimeError or OSError when it is gone, TimeoutError when it is stuck."""

    def about(self) -> dict[str, Any]:
        """`name`, `pid`, `started_us`, `command`; never raises."""

    def payloads(self) -> list[dict[str, Any]]:
        """The tree now, as the admin API's NodePayloads."""

    def diagnosis(self) -> Diagnosis:
        """Returns what the doctor finds; takes over a second."""

    def output(self, wanted: OutputRequest) -> Sequence[OutputPage]:
        """Returns what processes have written last, as the agents of their hosts have kept it."""

    def stacks(self) -> LiveStacks:
        """Returns those of all threads."""

    def stacks_of(self, reference: str) -> LiveStacks:
        """Returns those of the process of one actor; LookupError when it has ended."""

    def capture(self, reference: str) -> dict[str, Any]:
        """Returns those of one process, as GET /v1/pyspy/{proc} of the admin API."""

    def profile(self, seconds: float, path: str) -> None:
        """Writes what happens in the next `seconds` to `path`, as a Perfetto file."""
