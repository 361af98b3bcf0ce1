from monarch.testing import patch_actor as patch_actor
from monarch.tensor.simulator import patch_tensor_engine as patch_tensor_engine
