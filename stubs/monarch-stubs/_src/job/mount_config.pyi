from monarch.actor import HostMesh as HostMesh
