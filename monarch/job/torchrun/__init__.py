"""`monarch run`: torchrun's arguments, on the hosts of any job.

arguments   what may be said on the command line (pure)
plan        what each rank runs, its environment and its files (pure)
failures    which rank failed first, and what is told of it (pure)
run         starts the ranks, follows them, ends and restarts them
"""
