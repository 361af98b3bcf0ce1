from monarch.actor import ProcId as ProcId
from monarch.actor import Uid as Uid
from monarch.job import deserialize_service_proc_ids as deserialize_service_proc_ids
from monarch.job import new_service_proc_id as new_service_proc_id
from monarch.job import ranked_service_proc_id_from_env as ranked_service_proc_id_from_env
from monarch.job import serialize_service_proc_ids as serialize_service_proc_ids
from monarch.job import service_proc_addr as service_proc_addr
from monarch.job import service_proc_addrs as service_proc_addrs
