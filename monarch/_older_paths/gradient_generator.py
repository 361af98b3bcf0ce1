"""Derivatives one at a time: `grad_generator`, `grad_function`, and `GradGenerator` for trees of tensors."""

from __future__ import annotations

from monarch.tensor.controller.gradients import (
    GradGenerator,
    GradientGenerator,
    grad_function,
    grad_generator,
    gradient_execution_order,
)

__all__ = ["GradGenerator", "GradientGenerator", "grad_function", "grad_generator", "gradient_execution_order"]
