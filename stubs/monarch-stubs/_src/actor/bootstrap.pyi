from monarch import Extent as Extent
from monarch.actor import Future as Future
from monarch.actor import HostMesh as HostMesh
from monarch.actor import attach_to_workers as attach_to_workers
from monarch.actor import run_worker_loop_forever as run_worker_loop_forever
from monarch.actor import run_worker_loop_until_shutdown as run_worker_loop_until_shutdown
from monarch.actor import start_worker_loop_forever as start_worker_loop_forever
