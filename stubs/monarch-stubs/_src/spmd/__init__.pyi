from monarch.tools.network import AddrType as AddrType
from monarch.actor import ProcMesh as ProcMesh
from monarch.spmd import SPMDActor as SPMDActor
from monarch.spmd import setup_torch_elastic_env as setup_torch_elastic_env
from monarch.spmd import setup_torch_elastic_env_async as setup_torch_elastic_env_async
