"""Directories that a job brings to its hosts and back: see docs/mounts.md.

General layout, from the inside out:

    orders                what is to be mounted
    held                  what is mounted
    sidecar_messages, sidecar_program, sidecar
                          the process that holds the mounts, and the program's side of it
    component             the part of a job
"""
