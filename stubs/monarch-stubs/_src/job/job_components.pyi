from monarch.actor import HostMesh as HostMesh
from monarch.job import MeshAdminConfig as MeshAdminConfig
from monarch.job import TelemetryConfig as TelemetryConfig
