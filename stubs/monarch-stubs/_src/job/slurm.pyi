from monarch.actor import ChannelTransport as ChannelTransport
from monarch.job import JobTrait as JobTrait
from monarch.actor import ProcId as ProcId
from monarch.job import SlurmJob as SlurmJob
from monarch.actor import attach_to_workers as attach_to_workers
from monarch.job import serialize_service_proc_ids as serialize_service_proc_ids
from monarch.job import service_proc_addrs as service_proc_addrs
