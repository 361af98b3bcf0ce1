from monarch.actor import HostMesh as HostMesh
from monarch.actor import attach as attach
from monarch.actor import enable_transport as enable_transport
from monarch import get_runtime_config as get_runtime_config
