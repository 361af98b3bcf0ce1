"""The operators that torchvision's wheel lacks beside a torch without CUDA.

The registries' torchvision is for torch with CUDA, and its operators are not loaded without it. It asks for two by name
when it is imported, also by transformers; no model here uses them.
"""

from __future__ import annotations

import torch

library = torch.library.Library("torchvision", "FRAGMENT")


def define() -> None:
    """Define the operators, unless torchvision brings them."""
    if not torch.backends.cuda.is_built():
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
