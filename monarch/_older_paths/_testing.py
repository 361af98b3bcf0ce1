"""For tests of programs with distributed tensors: meshes of real processes, one without any, and actors
whose meshes are simulated."""

from __future__ import annotations

from monarch.tensor.controller.testing import TestingContext, mock_mesh
from monarch.tensor.simulator import patch_tensor_engine

__all__ = ["TestingContext", "mock_mesh", "patch_tensor_engine"]
