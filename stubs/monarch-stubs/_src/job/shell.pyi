from monarch.actor import Actor as Actor
from monarch.actor import Channel as Channel
from monarch.actor import HostMesh as HostMesh
from monarch.actor import Port as Port
from monarch.actor import PortReceiver as PortReceiver
from monarch.actor import context as context
from monarch.actor import endpoint as endpoint
from monarch.job import shell as shell
