"""For tests of programs with distributed tensors: meshes of real processes, and one without any."""

from __future__ import annotations

from monarch.tensor.mocked import mock_mesh
from monarch.tensor.testing import TestingContext

__all__ = ["TestingContext", "mock_mesh"]
