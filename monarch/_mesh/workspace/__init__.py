"""Local directories copied to every host: `HostMesh.sync_workspace`.

manifest    what a directory holds, and what differs between two (pure)
delta       which blocks of a file its older copy has (pure)
scan        a directory -> manifest
tree        a directory that is written to and never left
receiver    the actor on each host
sender      what one group of equal hosts is sent
sync        the whole of it, as the client runs it
reload      changed modules in running processes
conda       the active conda environment
"""
