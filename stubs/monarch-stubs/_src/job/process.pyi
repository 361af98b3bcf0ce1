from monarch.actor import Future as Future
from monarch.job import JobTrait as JobTrait
from monarch.actor import ProcId as ProcId
from monarch.job import ProcessJob as ProcessJob
from monarch.actor import attach_to_workers as attach_to_workers
from monarch.job import service_proc_addr as service_proc_addr
