"""Tiny models of timm and torchvision train on a mesh as here, bit by bit: operation by operation, and as one recorded
function.

`make test-models` installs both and runs them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.models.training import STEPS, is_in_the_table, trains_as_here

pytestmark = pytest.mark.models
os.environ["HF_HUB_OFFLINE"] = "1"
timm: Any = pytest.importorskip("timm", reason="needs timm and torchvision: make test-models installs them")
torchvision: Any = pytest.importorskip("torchvision", reason="needs torchvision: make test-models installs it")

PATCHES: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "num_heads": 2, "drop_path_rate": 0.1}


def of_timm(name: str, **given: Any) -> Callable[[], Any]:
    return lambda: timm.create_model(name, num_classes=4, **given)


def of_torchvision(name: str, *given: Any, **named: Any) -> Callable[[], Any]:
    return lambda: getattr(torchvision.models, name)(*given, num_classes=4, **named)


def residual() -> Any:
    return torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=4)


def convolutions() -> Any:
    block = torchvision.models.convnext.CNBlockConfig
    return torchvision.models.ConvNeXt([block(8, 16, 1), block(16, None, 1)], stochastic_depth_prob=0.2, num_classes=4)


MODELS: dict[str, Callable[[], Any]] = {
    "timm: resnet": of_timm("resnet10t", drop_rate=0.1, drop_path_rate=0.1),
    "timm: vit": of_timm("vit_tiny_patch16_224", depth=2, drop_rate=0.1, **PATCHES),
    "timm: deit": of_timm("deit_tiny_distilled_patch16_224", depth=2, **PATCHES),
    "timm: beit": of_timm("beit_base_patch16_224", depth=2, **PATCHES),
    "timm: cait": of_timm("cait_xxs24_224", depth=2, **PATCHES),
    "timm: eva": of_timm("eva02_tiny_patch14_224", depth=2, **PATCHES),
    "timm: swin": of_timm(
        "swin_tiny_patch4_window7_224",
        img_size=32,
        window_size=4,
        embed_dim=8,
        depths=(2, 2),
        num_heads=(1, 2),
        drop_path_rate=0.2,
    ),
    "timm: convnext": of_timm("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 8, 16, 16), drop_path_rate=0.2),
    "timm: densenet": of_timm("densenet121", growth_rate=4, block_config=(2, 2), drop_rate=0.1),
    "timm: mobilenet": of_timm("mobilenetv3_small_050", drop_rate=0.1, drop_path_rate=0.1),
    "torchvision: resnet": residual,
    "torchvision: vit": of_torchvision("VisionTransformer", 32, 8, 2, 2, 16, 32, dropout=0.1),
    "torchvision: swin": of_torchvision(
        "SwinTransformer", [4, 4], 8, [2, 2], [1, 2], [4, 4], stochastic_depth_prob=0.2
    ),
    "torchvision: convnext": convolutions,
    "torchvision: mobilenet": of_torchvision("MobileNetV2", width_mult=0.25),
    "torchvision: shufflenet": of_torchvision("ShuffleNetV2", [1, 1, 1], [8, 8, 16, 16, 32]),
}


def pictures() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.linspace(0, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32), torch.tensor([0, 1])


def loss_of(model: Any, given: tuple[torch.Tensor, torch.Tensor]) -> Any:
    pixels, labels = given
    found = model(pixels)
    return sum(cross_entropy(logits, labels) for logits in (found if isinstance(found, tuple) else (found,)))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_as_it_does_here(name: str) -> None:
    def made() -> Any:
        torch.manual_seed(0)
        return MODELS[name]().train()

    trains_as_here(made, loss_of, lambda: [pictures()] * STEPS)


def test_the_table_says_what_these_tests_show() -> None:
    for library in (timm, torchvision):
        name = f"{library.__name__}: "
        assert is_in_the_table(library, (model.removeprefix(name) for model in MODELS if model.startswith(name)))
