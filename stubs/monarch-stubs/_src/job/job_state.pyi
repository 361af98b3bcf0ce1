from monarch.actor import HostMesh as HostMesh
from monarch.job import JobState as JobState
