"""Names that jobs, their files and their processes agree on."""

from __future__ import annotations

FOLDER = ".monarch"
DEFAULT_JOB_PATH = f"{FOLDER}/job_state.pkl"
LOGGER = "monarch.job"
BATCH_JOB = "MONARCH_BATCH_JOB"  # "1" in the client of a batch job
