"""Tiny models of transformers train on a mesh as here, bit by bit: operation by operation, and as one recorded function.

`make test-models` installs transformers and runs them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import monarch
from monarch.tensor import function
from monarch.tensor.controller.misuse import DataDependentError
from tests.models.training import STEPS, as_it_is, fused, is_in_the_table, of_rank_0, trained, trains_as_here
from tests.tensor.loopback import loopback

pytestmark = pytest.mark.models
os.environ["HF_HUB_OFFLINE"] = "1"
transformers: Any = pytest.importorskip("transformers", reason="needs transformers: make test-models installs it")

Batch = dict[str, Any]
BASE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}
ENCODER_DECODER: dict[str, Any] = {
    "vocab_size": 64,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
STARTS = {"decoder_start_token_id": 0}
VISION: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 16,
    "patch_size": 4,
}


def tokens() -> torch.Tensor:
    return torch.arange(24).reshape(2, 12) % 60 + 2


def text() -> Batch:
    return {"input_ids": tokens(), "labels": tokens()}


def padded() -> Batch:
    """The second sequence is shorter."""
    return {**text(), "attention_mask": torch.tensor([[1] * 12, [1] * 8 + [0] * 4])}


def pictures(size: int) -> Callable[[], Batch]:
    def batch() -> Batch:
        pixels = torch.linspace(0, 1, 2 * 3 * size * size).reshape(2, 3, size, size)
        return {"pixel_values": pixels, "labels": torch.tensor([0, 1])}

    return batch


def pairs() -> Batch:
    return {"input_ids": tokens(), "pixel_values": pictures(16)()["pixel_values"], "return_loss": True}


def sounds() -> Batch:
    return {"input_features": torch.linspace(0, 1, 2 * 8 * 32).reshape(2, 8, 32), "labels": tokens()}


def waves() -> Batch:
    return {"input_values": torch.linspace(-1, 1, 800).reshape(2, 400), "labels": torch.tensor([0, 1])}


# The classes' names without Config, what their configuration is given, a batch.
MODELS: dict[str, tuple[str, str, dict[str, Any], Callable[[], Batch]]] = {
    "bert": ("Bert", "BertForMaskedLM", BASE, padded),
    "bert, not padded": ("Bert", "BertForMaskedLM", BASE, text),
    "roberta": ("Roberta", "RobertaForMaskedLM", BASE, padded),
    "distilbert": (
        "DistilBert",
        "DistilBertForMaskedLM",
        {"vocab_size": 64, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 64},
        padded,
    ),
    "gpt2": (
        "GPT2",
        "GPT2LMHeadModel",
        {"vocab_size": 64, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
        padded,
    ),
    "llama": ("Llama", "LlamaForCausalLM", BASE, padded),
    "llama, not padded": ("Llama", "LlamaForCausalLM", BASE, text),
    "qwen2": ("Qwen2", "Qwen2ForCausalLM", {**BASE, "num_key_value_heads": 2}, padded),
    "mistral": ("Mistral", "MistralForCausalLM", {**BASE, "num_key_value_heads": 2, "sliding_window": 4}, padded),
    "gemma2": ("Gemma2", "Gemma2ForCausalLM", {**BASE, "num_key_value_heads": 2, "head_dim": 8}, padded),
    "mixtral": ("Mixtral", "MixtralForCausalLM", {**BASE, "num_key_value_heads": 2, "num_local_experts": 2}, padded),
    "opt": (
        "OPT",
        "OPTForCausalLM",
        {
            "vocab_size": 64,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "ffn_dim": 32,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 16,
        },
        padded,
    ),
    "bloom": ("Bloom", "BloomForCausalLM", {"vocab_size": 64, "hidden_size": 16, "n_layer": 2, "n_head": 2}, padded),
    "mamba": (
        "Mamba",
        "MambaForCausalLM",
        {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
        text,
    ),
    "t5": (
        "T5",
        "T5ForConditionalGeneration",
        {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, **STARTS},
        padded,
    ),
    "deberta": (
        "DebertaV2",
        "DebertaV2ForMaskedLM",
        {**BASE, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
        padded,
    ),
    "gemma": ("Gemma", "GemmaForCausalLM", {**BASE, "num_key_value_heads": 1, "head_dim": 8}, padded),
    "qwen2, experts": (
        "Qwen2Moe",
        "Qwen2MoeForCausalLM",
        {
            **BASE,
            "num_key_value_heads": 2,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "output_router_logits": True,
        },
        padded,
    ),
    "albert": ("Albert", "AlbertForMaskedLM", {**BASE, "embedding_size": 16}, padded),
    "phi": ("Phi", "PhiForCausalLM", BASE, padded),
    "falcon": (
        "Falcon",
        "FalconForCausalLM",
        {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
        padded,
    ),
    "electra": ("Electra", "ElectraForMaskedLM", {**BASE, "embedding_size": 16}, padded),
    "vit, masked": (
        "ViTMAE",
        "ViTMAEForPreTraining",
        {
            **VISION,
            "decoder_hidden_size": 16,
            "decoder_num_hidden_layers": 1,
            "decoder_num_attention_heads": 2,
            "decoder_intermediate_size": 32,
        },
        lambda: {"pixel_values": pictures(16)()["pixel_values"]},
    ),
    "whisper": (
        "Whisper",
        "WhisperForConditionalGeneration",
        {
            **ENCODER_DECODER,
            "num_mel_bins": 8,
            "max_source_positions": 16,
            "max_target_positions": 32,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        sounds,
    ),
    "clip": ("CLIP", "CLIPModel", {"text_config": BASE, "vision_config": VISION, "projection_dim": 8}, pairs),
    "vit": ("ViT", "ViTForImageClassification", VISION, pictures(16)),
    "swin": (
        "Swin",
        "SwinForImageClassification",
        {"embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "image_size": 32, "patch_size": 4, "window_size": 4},
        pictures(32),
    ),
    "convnext": (
        "ConvNext",
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
        pictures(32),
    ),
    "resnet": (
        "ResNet",
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
        pictures(32),
    ),
}
BART: tuple[str, str, dict[str, Any], Callable[[], Batch]] = (
    "Bart",
    "BartForConditionalGeneration",
    {**ENCODER_DECODER, "max_position_embeddings": 64},
    padded,
)
WAVES: tuple[str, str, dict[str, Any], Callable[[], Batch]] = (
    "Wav2Vec2",
    "Wav2Vec2ForSequenceClassification",
    {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "conv_dim": (8, 8),
        "conv_stride": (5, 2),
        "conv_kernel": (10, 3),
        "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2,
        "vocab_size": 32,
        "mask_time_length": 2,
        "mask_time_prob": 0.3,
        "layerdrop": 0.3,
        "classifier_proj_size": 8,
    },
    waves,
)


def made(config: str, model: str, given: dict[str, Any]) -> Any:
    """A model with dropout, from the same seeds each time."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    return getattr(transformers, model)(getattr(transformers, f"{config}Config")(**given)).train()


def loss_of(model: Any, given: Batch) -> Any:
    return model(**given).loss


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_as_it_does_here(name: str) -> None:
    config, model, given, batch = MODELS[name]
    trains_as_here(lambda: made(config, model, given), loss_of, lambda: [batch()] * STEPS)


def losses_of(kind: Any, value: Callable[[Any], float], wrap: Callable[[Any], Any] = as_it_is) -> list[float]:
    config, model, given, batch = kind
    return trained(made(config, model, given), loss_of, [batch() for _ in range(STEPS)], wrap, value)


def test_a_mask_of_floats_is_waited_for() -> None:
    wanted = losses_of(BART, float)
    with loopback(gpus=2) as mesh:
        with pytest.raises(DataDependentError, match=r"with monarch\.agreed_values\(\)"):
            losses_of(BART, of_rank_0(mesh))
        with monarch.agreed_values() as reads:
            assert losses_of(BART, of_rank_0(mesh)) == wanted
        assert reads.count == STEPS  # one in each step
        with monarch.agreed_values(), pytest.warns(RuntimeWarning, match="it needs values while it runs"):
            assert losses_of(BART, of_rank_0(mesh), function) == wanted


def test_masks_that_numpy_draws() -> None:
    """SpecAugment's: they are constants, by which the program indexes. A replay would not draw them."""
    wanted = losses_of(WAVES, float)
    with loopback(gpus=2) as mesh:
        with monarch.agreed_values() as reads:  # layers are dropped by numbers that torch draws
            assert losses_of(WAVES, of_rank_0(mesh)) == wanted
        assert reads.count == STEPS * 2
        with monarch.agreed_values(), pytest.warns(RuntimeWarning, match="runs operation by operation from now on"):
            assert losses_of(WAVES, of_rank_0(mesh), function) == wanted


@pytest.mark.parametrize(
    "how", [{}, {"do_sample": True}, {"num_beams": 2}, {"num_beams": 2, "do_sample": True}], ids=str
)
@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_texts_are_generated_as_here(name: str, how: dict[str, Any]) -> None:
    config, model, given, batch = MODELS.get(name, BART)

    def generated() -> Any:
        writer = made(config, model, given).eval()
        torch.manual_seed(5)
        return writer.generate(batch()["input_ids"][:, :5], max_new_tokens=6, pad_token_id=0, **how).tolist()

    wanted = generated()
    with loopback(gpus=2), monarch.agreed_values() as reads:
        assert generated() == wanted
    assert 7 <= reads.count <= 15


def in_bfloat16(model: Any, given: Batch) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(**given).loss


def with_checkpoints(config: str, model: str, given: dict[str, Any]) -> Any:
    found = made(config, model, given)
    found.activation_checkpointing_enable()
    return found


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("name", ["llama", "bert", "vit"])
def test_in_other_ways(name: str) -> None:
    """With SGD, in bfloat16, and with layers that are computed again for their derivatives."""
    config, model, given, batch = MODELS[name]
    batches = [batch()] * STEPS

    def make() -> Any:
        return made(config, model, given)

    trains_as_here(make, loss_of, lambda: [batch() for _ in batches], make_optimizer=sgd)
    trains_as_here(make, in_bfloat16, lambda: [batch() for _ in batches])
    trains_as_here(lambda: with_checkpoints(config, model, given), loss_of, lambda: [batch() for _ in batches])


def test_an_optimizer_that_counts_in_python() -> None:
    config, model, given, batch = MODELS["llama"]
    trains_as_here(
        lambda: made(config, model, given), loss_of, lambda: [batch() for _ in range(STEPS)], 1, torch.optim.AdamW
    )


def test_states_go_there_and_back(tmp_path: Path) -> None:
    """Weights and the optimizer's state of training here are loaded on a mesh, which goes on, and saves what goes on here."""
    config, model, given, batch = MODELS["llama"]

    def train(steps: int, value: Callable[[Any], float]) -> list[float]:
        net = made(config, model, given)
        optimizer = fused(net.parameters())
        if (tmp_path / "state").exists():
            state = torch.load(tmp_path / "state")
            net.load_state_dict(state["net"])
            optimizer.load_state_dict(state["optimizer"])
        torch.manual_seed(1)
        found = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = loss_of(net, batch())
            loss.backward()
            optimizer.step()
            found.append(value(loss.detach()))
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state")
        return found

    wanted = [train(2, float) for _ in range(3)]
    (tmp_path / "state").unlink()
    first = train(2, float)
    with loopback(gpus=2) as mesh:
        second = train(2, of_rank_0(mesh))
    assert [first, second, train(2, float)] == wanted


def test_every_padding_is_served_by_few_recordings() -> None:
    """Each batch has another one; what a model reads of it is the same for nearly all."""
    lengths = [(12, 12), (12, 8), (5, 12), (12, 3), (12, 12), (12, 11), (7, 12), (12, 12)]

    def batches() -> list[Batch]:
        masks = [torch.tensor([[1] * a + [0] * (12 - a), [1] * b + [0] * (12 - b)]) for a, b in lengths]
        return [{**text(), "attention_mask": mask} for mask in masks]

    trains_as_here(lambda: made("Llama", "LlamaForCausalLM", BASE), loss_of, batches, 2)  # padded, and not


def test_the_table_says_what_these_tests_show() -> None:
    assert is_in_the_table(transformers, (model for _, model, *_ in MODELS.values()))
    waited = "equal under `agreed_values`"
    refused = "operation by operation, with a warning"
    assert is_in_the_table(transformers, (model for _, model, *_ in (BART, WAVES)), waited, refused)
