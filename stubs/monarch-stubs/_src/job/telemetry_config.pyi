from monarch.actor import HostMesh as HostMesh
from monarch.job import TelemetryConfig as TelemetryConfig
from monarch.actor import context as context
from monarch.actor import shutdown_context as shutdown_context
