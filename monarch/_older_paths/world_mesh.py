"""A mesh of processes on hosts that a supervisor has started: not here."""

raise ImportError(
    "monarch.world_mesh is of an older runtime: use this_host().spawn_procs(), or a job of monarch.job for several hosts"
)
