"""`from monarch.safe_torch import torch`: torch, imported on a thread that ends right after.

Libraries that torch loads leave what belongs to a thread (signal masks, thread-local handles) with the one that imports
them. The program's own thread keeps out of that, and can be forked from later.
"""

from __future__ import annotations

import importlib
import threading

_importing = threading.Thread(target=importlib.import_module, args=("torch",), name="import-torch")
_importing.start()
_importing.join()

import torch  # noqa: E402  it is there by now, or raises here why it is not

__all__ = ["torch"]
