"""Programs as libraries write them on top of Monarch, by the paths that these import from. Each runs by itself, checks what
it finds, and says `ok` at its end. `python -m tests.programs --help`.
"""
