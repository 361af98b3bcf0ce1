from monarch.actor import ProcId as ProcId
from monarch.actor import enable_transport as enable_transport
from monarch._older_paths._private_names import host_mesh_from_store as host_mesh_from_store
from monarch.job import new_service_proc_id as new_service_proc_id
from monarch.job import service_proc_addr as service_proc_addr
