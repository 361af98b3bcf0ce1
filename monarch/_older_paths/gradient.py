"""Derivatives one at a time: `GradientGenerator`, and in which order a backward pass completes them."""

from __future__ import annotations

from monarch.tensor.controller.gradients import GradientGenerator, gradient_execution_order

__all__ = ["GradientGenerator", "gradient_execution_order"]
