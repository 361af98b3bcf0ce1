"""A directory of the client on every host: `monarch.remotemount.remotemount.remotemount`.

    mount = remotemount(hosts, "/home/me/project")
    mount.open()

place          where a mount goes on a host, and what stands there already (pure but for looking)
mirror         real files, as the client runs it
mirror_host    the actor that writes them
versions       which content a file of the tree has, as numbers (pure)
tree           a directory tree as a file system asks for it (pure)
source         the actor of the client that reads files for FUSE mounts
mount_host     the actor on each host that holds a FUSE mount
fuse_process   a process that serves one FUSE mount, and what it says to its owner
fuse_program   that process's own side
remotemount    the handler that programs hold
"""
