from monarch.actor import Actor as Actor
from monarch.actor import HostMesh as HostMesh
from monarch.actor import context as context
from monarch.actor import endpoint as endpoint
from monarch.gather_mount import gather_mount as gather_mount
from monarch.actor import this_proc as this_proc
