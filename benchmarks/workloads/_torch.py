"""Makes torch importable: this interpreter's own, or else the one in the folder that MONARCH_BENCH_TORCH
names.

The folder comes last on sys.path, so it adds torch and what torch needs, and replaces nothing a contender
has.
"""

from __future__ import annotations

import importlib.util
import os
import sys

if importlib.util.find_spec("torch") is None and os.environ.get("MONARCH_BENCH_TORCH"):
    sys.path.append(os.environ["MONARCH_BENCH_TORCH"])

import torch

__all__ = ["torch"]
