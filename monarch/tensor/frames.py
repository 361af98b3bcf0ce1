"""The frames of a stack that are a program's own: neither torch's nor this package's."""

from __future__ import annotations

import torch

TORCH = torch.__file__.rpartition("/")[0] + "/"
PACKAGE = __file__.rpartition("/")[0] + "/"  # of monarch.tensor, with all its folders


def internal(filename: str) -> bool:
    """True if code of this file is torch's, this package's, or nobody's."""
    return filename.startswith((TORCH, PACKAGE, "<frozen ")) or not filename
