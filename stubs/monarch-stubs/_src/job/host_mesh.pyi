from monarch.actor import HostMesh as HostMesh
from monarch.actor import attach_to_workers as attach_to_workers
from monarch.job import hosts_from_config as hosts_from_config
from monarch.job import new_service_proc_id as new_service_proc_id
from monarch.job import service_proc_addr as service_proc_addr
