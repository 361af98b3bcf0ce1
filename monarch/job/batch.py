"""A job that runs its client itself: what the client finds in the job's file."""

from __future__ import annotations

import os
from typing import Any

from monarch._linux.maker import at_exit
from monarch.job.job_state import JobState
from monarch.job.job_trait import JobTrait
from monarch.job.names import BATCH_JOB, DEFAULT_JOB_PATH


class BatchJob(JobTrait):
    """The job `wrapped`, in whose allocation the client runs: it is always active, serves that client (MONARCH_BATCH_JOB=1)
    and nobody else, and ends with it."""

    def __init__(self, wrapped: JobTrait) -> None:
        super().__init__()
        self._wrapped = wrapped
        self._components = wrapped._components
        self._apply_id = wrapped.apply_id
        self._status = "running"

    def can_run(self, spec: JobTrait) -> bool:
        if os.environ.get(BATCH_JOB) != "1":
            return False
        at_exit(self._kill)
        return True

    def _create(self, client_script: str | None) -> None:
        self._wrapped._create(client_script)

    def _state(self) -> JobState:
        return self._wrapped._state()

    def _kill(self) -> None:
        self._wrapped._kill()

    def _hosts_outlive_program(self) -> bool:
        return False

    def _rebind_connection_inputs(self, spec: JobTrait) -> None:
        self._wrapped._rebind_connection_inputs(spec)

    def _cleanup_log_context(self) -> dict[str, Any]:
        return self._wrapped._cleanup_log_context()

    def _requires_sidecar_gateway(self) -> bool:
        return self._wrapped._requires_sidecar_gateway()

    def _prepare_client_gateway(self) -> None:
        self._wrapped._prepare_client_gateway()

    def _sidecar_attach_to(self) -> str | None:
        return self._wrapped._sidecar_attach_to()


def keep_for_client(job: JobTrait) -> None:
    """Leaves the job where its client will look for it. Before the order: the client may begin before that returns."""
    BatchJob(job).dump(DEFAULT_JOB_PATH)
