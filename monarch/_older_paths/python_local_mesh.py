"""A mesh of processes on this machine: not here."""

raise ImportError("monarch.python_local_mesh is of an older runtime: use this_host().spawn_procs({'gpus': N})")
