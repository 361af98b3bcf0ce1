from monarch.actor import Actor as Actor
from monarch.actor import HostMesh as HostMesh
from monarch.actor import MeshFailure as MeshFailure
from monarch.actor import ProcMesh as ProcMesh
from monarch.actor import current_rank as current_rank
from monarch.actor import endpoint as endpoint
