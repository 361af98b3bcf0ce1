"""`monarch run`: torchrun's arguments, on the hosts of any job.

arguments        what may be said on the command line (pure)
rank_plan        what each rank runs, its environment and its files (pure)
numa_binding     which processors each rank gets
event_log        the events of a run, as torchrun names them
failures         which rank failed first, and what is told of it (pure)
run              starts the ranks, follows them, ends and restarts them
meeting          who takes part when commands are started once on every node (pure)
meeting_sockets  how they talk, once they have proven that they belong together
once_a_node      the command that leads, and those that lend it their hosts
"""
