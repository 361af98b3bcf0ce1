"""What type checkers see of `monarch`, whose names are loaded when first touched. A test compares it with the table there."""

from monarch import actor as actor
from monarch import builtins as builtins
from monarch import config as config
from monarch import mesh_controller as mesh_controller
from monarch import rdma as rdma
from monarch import spmd as spmd
from monarch import tensor as tensor
from monarch import testing as testing
from monarch import timer as timer
from monarch._runtime.future import Future as ActorFuture
from monarch._runtime.future import Future as Future
from monarch._shape.extent import Extent as Extent
from monarch._shape.region import Shape as Shape
from monarch._shape.slice import NDSlice as NDSlice
from monarch.config import clear_runtime_config as clear_runtime_config
from monarch.config import configure as configure
from monarch.config import configured as configured
from monarch.config import get_global_config as get_global_config
from monarch.config import get_runtime_config as get_runtime_config
from monarch.tensor.controller.activation import no_mesh as no_mesh
from monarch.tensor.controller.collectives import reduce as reduce
from monarch.tensor.controller.collectives import reduce_ as reduce_
from monarch.tensor.controller.fetch import fetch_shard as fetch_shard
from monarch.tensor.controller.fetch import inspect as inspect
from monarch.tensor.controller.fetch import show as show
from monarch.tensor.controller.gradients import grad_function as grad_function
from monarch.tensor.controller.gradients import grad_generator as grad_generator
from monarch.tensor.controller.groups import RemoteProcessGroup as RemoteProcessGroup
from monarch.tensor.controller.mesh import get_active_mesh as get_active_mesh
from monarch.tensor.controller.moves import slice_mesh as slice_mesh
from monarch.tensor.controller.moves import to_mesh as to_mesh
from monarch.tensor.controller.stream import Stream as Stream
from monarch.tensor.controller.stream import get_active_stream as get_active_stream
from monarch.tensor.controller.tensor import Tensor as Tensor
from monarch.tensor.functions import function_resolvers as function_resolvers
from monarch.tensor.recording.coalescing import coalescing as coalescing
from monarch.tensor.recording.function import function as function
from monarch.tensor.remote.opaque_ref import OpaqueRef as OpaqueRef
from monarch.tensor.remote.remote_function import call_on_shard_and_fetch as call_on_shard_and_fetch
from monarch.tensor.remote.remote_function import remote as remote
from monarch.tensor.simulator import Simulator as Simulator
from monarch.tensor.simulator import set_meta as set_meta

__version__: str
