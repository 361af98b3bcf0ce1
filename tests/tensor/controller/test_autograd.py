"""Training code as people write it, on a mesh and in this process: the same numbers come out."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import monarch
from monarch.tensor.controller.activation import no_modes
from tests.tensor.loopback import loopback


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    with monarch.no_mesh.activate():
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def there(local: Any) -> Any:
    """The same values where torch works now: on the mesh under an activation."""
    with monarch.no_mesh.activate():
        values, dtype = local.tolist(), local.dtype
    return torch.tensor(values, dtype=dtype)


def module(make: Callable[[], nn.Module], seed: int = 3) -> nn.Module:
    """A module with the parameters that `make` gives here, where torch works now."""
    made = make()
    with monarch.no_mesh.activate():
        torch.manual_seed(seed)
        pattern = make().state_dict()
    made.load_state_dict({name: there(value) for name, value in pattern.items()})
    return made


def both(procs: Any, program: Callable[[], list[Any]], tolerance: float = 1e-6) -> None:
    """`program` gives the same tensors on each rank as here."""
    here = program()
    with procs.activate():
        got = program()
    for rank in range(2):
        for want, have in zip(here, monarch.inspect(got, gpus=rank), strict=True):
            torch.testing.assert_close(have, want, rtol=tolerance, atol=tolerance)
    assert all(isinstance(value, monarch.Tensor) for value in got if isinstance(value, torch.Tensor))


def derived(model: nn.Module, *inputs: Any, **options: Any) -> list[Any]:
    """Returns what a model gives, and every gradient of the sum of its squares."""
    given = [value.requires_grad_() if value.is_floating_point() else value for value in inputs]
    out = model(*given, **options)
    out = out[0] if isinstance(out, tuple) else out
    (out * out).sum().backward()
    return [
        out.detach(),
        *(value.grad for value in given if value.requires_grad),
        *(p.grad for p in model.parameters()),
    ]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (2, 4)),
    "linear without bias": (lambda: nn.Linear(4, 3, bias=False), (2, 4)),
    "layer norm": (lambda: nn.LayerNorm(4), (2, 4)),
    "layer norm, no affine": (lambda: nn.LayerNorm(4, elementwise_affine=False), (2, 4)),
    "layer norm, no bias": (lambda: nn.LayerNorm(4, bias=False), (2, 4)),
    "rms norm": (lambda: nn.RMSNorm(4), (2, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (2, 4, 3)),
    "batch norm": (lambda: nn.BatchNorm1d(4), (6, 4)),
    "conv": (lambda: nn.Conv2d(2, 3, 3, padding=1, stride=2), (2, 2, 5, 5)),
    "transposed conv": (lambda: nn.ConvTranspose1d(2, 3, 3), (2, 2, 5)),
    "pools": (lambda: nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)), (1, 2, 8, 8)),
    "activations": (
        lambda: nn.Sequential(
            nn.GELU(), nn.SiLU(), nn.Tanh(), nn.Softplus(), nn.LeakyReLU(), nn.PReLU(), nn.Hardswish()
        ),
        (3, 4),
    ),
    "softmax": (lambda: nn.Sequential(nn.Softmax(-1), nn.LogSoftmax(0)), (3, 4)),
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), (5, 4)),
    "rnn": (lambda: nn.GRU(4, 3, batch_first=True), (2, 5, 4)),
    "lstm": (lambda: nn.LSTM(4, 3, num_layers=2), (5, 2, 4)),
    "transformer layer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        (2, 3, 4),
    ),
    "upsampling": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 3, 3)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (2, 4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_modules(procs: Any, name: str) -> None:
    make, shape = MODELS[name]
    both(procs, lambda: derived(module(make), there(numbers(*shape))), 1e-5)


def test_embedding_and_cross_entropy(procs: Any) -> None:
    def program() -> list[Any]:
        embedding, head = module(lambda: nn.Embedding(7, 4)), module(lambda: nn.Linear(4, 5))
        logits = head(embedding(torch.tensor([[1, 2, 6], [0, 2, 2]])))
        loss = F.cross_entropy(logits.flatten(0, 1), torch.tensor([0, 1, 2, 3, 4, -100]), label_smoothing=0.1)
        loss.backward()
        return [loss.detach(), embedding.weight.grad, head.weight.grad, head.bias.grad]

    both(procs, program)


def test_losses(procs: Any) -> None:
    def program() -> list[Any]:
        x, y = there(numbers(4, 3)).requires_grad_(), there(numbers(4, 3, seed=1))
        loss = F.mse_loss(x, y) + F.smooth_l1_loss(x, y) + F.binary_cross_entropy_with_logits(x, (y > 0).float())
        loss = loss + F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean") + F.huber_loss(x, y)
        loss.backward()
        return [loss.detach(), x.grad]

    both(procs, program)


@pytest.mark.parametrize("weights", [False, True])
def test_attention(procs: Any, weights: bool) -> None:
    def program() -> list[Any]:
        model = module(lambda: nn.MultiheadAttention(4, 2, batch_first=True))
        x = there(numbers(2, 3, 4))
        return derived(model, x, x, x, need_weights=weights)[:2]

    both(procs, program, 1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_scaled_dot_product_attention(procs: Any, causal: bool) -> None:
    def program() -> list[Any]:
        q, k, v = (there(numbers(2, 2, 5, 4, seed=seed)).requires_grad_() for seed in range(3))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        out.pow(2).sum().backward()
        return [out.detach(), q.grad, k.grad, v.grad]

    both(procs, program, 1e-5)


def test_attention_with_a_mask(procs: Any) -> None:
    def program() -> list[Any]:
        q = there(numbers(1, 2, 3, 4)).requires_grad_()
        mask = torch.tensor([[True, False, True]] * 3)
        out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        out.sum().backward()
        return [out.detach(), q.grad]

    both(procs, program, 1e-5)


def test_dropout_zeroes_and_scales_and_its_derivative_uses_the_same_mask(procs: Any) -> None:
    with procs.activate():
        x = torch.ones(64, requires_grad=True)
        y = nn.Dropout(0.5)(x)
        y.sum().backward()
        same = (y == x.grad).all()
    got, grads_are = monarch.inspect((y, same))
    assert set(got.tolist()) == {0.0, 2.0} and grads_are.item()
    both(procs, lambda: [nn.Dropout(0.5).eval()(there(numbers(4)))])


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam one by one": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
}


def trained(make: Callable[[Any], torch.optim.Optimizer], steps: int = 7) -> list[Any]:
    model = module(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    optimizer = make(model.parameters())
    x, y = there(numbers(5, 4)), there(numbers(5, 2, seed=1))
    for _ in range(steps):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [loss.detach(), *(parameter.detach() for parameter in model.parameters())]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(procs: Any, name: str) -> None:
    both(procs, lambda: trained(OPTIMIZERS[name]), 1e-5)


def test_clipping_scheduling_and_groups(procs: Any) -> None:
    def program() -> list[Any]:
        model = module(lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)))
        optimizer = torch.optim.AdamW(
            [{"params": model[0].parameters(), "weight_decay": 0.1}, {"params": model[1].parameters(), "lr": 0.02}],
            lr=0.05,
        )
        schedules = [
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5),
        ]
        norms = []
        for _ in range(4):
            model(there(numbers(3, 4))).square().sum().backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
            nn.utils.clip_grad_value_(model.parameters(), 0.2)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            for schedule in schedules:
                schedule.step()
        return [torch.stack(norms), *(parameter.detach() for parameter in model.parameters())]

    both(procs, program, 1e-5)


def test_states_go_out_to_a_file_and_come_back(procs: Any) -> None:
    with procs.activate():
        model = module(lambda: nn.Linear(3, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        state = monarch.inspect({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    torch.testing.assert_close(loaded["model"]["weight"], state["model"]["weight"])
    local = nn.Linear(3, 2)
    local.load_state_dict(loaded["model"])
    resumed = torch.optim.Adam(local.parameters(), lr=0.1)
    resumed.load_state_dict(loaded["optimizer"])
    for _ in range(2):
        local(torch.ones(1, 3)).sum().backward()
        resumed.step()
    with procs.activate():
        again = nn.Linear(3, 2)
        again.load_state_dict({name: there(value) for name, value in loaded["model"].items()})
        same = torch.optim.Adam(again.parameters(), lr=0.1)
        same.load_state_dict(optimizer.state_dict())
        for _ in range(2):
            again(torch.ones(1, 3)).sum().backward()
            same.step()
    for here, afar in zip(local.parameters(), monarch.inspect(list(again.parameters()), gpus=1), strict=True):
        torch.testing.assert_close(afar, here.detach())


@pytest.mark.parametrize("norm", [lambda: nn.BatchNorm1d(3), lambda: nn.LayerNorm(3), lambda: nn.GroupNorm(1, 3)])
def test_what_comes_before_is_frozen(procs: Any, norm: Callable[[], nn.Module]) -> None:
    """Gradients that nobody asks for are None where a kernel gives none."""

    def program() -> list[Any]:
        model = module(lambda: nn.Sequential(nn.Linear(3, 3), norm()))
        model[0].requires_grad_(False)
        (model(there(numbers(4, 3))) * there(numbers(4, 3, seed=1))).sum().backward()
        return [model[1].weight.grad, model[1].bias.grad]

    both(procs, program)


def test_copies_of_modules(procs: Any) -> None:
    def program() -> list[Any]:
        model = module(lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
        model[0].bias.requires_grad_(False)
        twin = copy.deepcopy(model)
        assert type(twin[0].weight) is type(model[0].weight) and isinstance(twin[0].weight, nn.Parameter)
        assert [p.requires_grad for p in twin.parameters()] == [p.requires_grad for p in model.parameters()]
        with torch.no_grad():
            model[0].weight.zero_()
        (twin(there(numbers(4, 3))) * there(numbers(4, 3, seed=1))).sum().backward()
        return [model[0].weight.detach(), twin[0].weight.detach(), twin[0].weight.grad, twin[1].running_mean]

    both(procs, program)
    with procs.activate():
        model = nn.Linear(2, 2)
    twin = copy.deepcopy(model)  # outside the mesh as well
    assert isinstance(twin.weight, monarch.Tensor) and twin.weight is not model.weight


def test_shared_parameters_stay_shared(procs: Any) -> None:
    with procs.activate():
        model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        model[1].weight = model[0].weight
        twin = copy.deepcopy(model)
        assert twin[1].weight is twin[0].weight and len(list(twin.parameters())) == 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_modules_in_other_dtypes(procs: Any, dtype: torch.dtype) -> None:
    def program() -> list[Any]:
        model = module(lambda: nn.Linear(3, 2)).to(dtype)
        model(there(numbers(2, 3)).to(dtype)).sum().backward()
        return [model.weight.detach(), model.weight.grad]

    both(procs, program, 1e-2)


def test_autocast(procs: Any) -> None:
    def program() -> list[Any]:
        model = module(lambda: nn.Linear(3, 2))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(there(numbers(2, 3)))
        assert out.dtype == torch.bfloat16
        out.float().sum().backward()
        return [out.detach(), model.weight.grad]

    both(procs, program, 1e-2)


def test_grad_of_grad(procs: Any) -> None:
    def program() -> list[Any]:
        x = there(numbers(3)).requires_grad_()
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, retain_graph=True)
        (again,) = torch.autograd.grad(first.sum(), x)
        return [first.detach(), second, again]

    both(procs, program)


def test_grad_of_unused_and_given_gradients(procs: Any) -> None:
    def program() -> list[Any]:
        x, y = there(numbers(3)).requires_grad_(), there(numbers(3, seed=1)).requires_grad_()
        got = torch.autograd.grad(x * 2, [x, y], there(numbers(3, seed=2)), allow_unused=True)
        assert got[1] is None
        zeros = torch.autograd.grad((x * 2).sum(), [y], allow_unused=True, materialize_grads=True)
        return [got[0], zeros[0]]

    both(procs, program)


def test_backward_adds_up_and_the_second_time_needs_the_graph(procs: Any) -> None:
    def program() -> list[Any]:
        x = there(numbers(3)).requires_grad_()
        loss = (x * x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            loss.backward()
        return [x.grad]

    both(procs, program)


def test_backward_after_the_mesh_is_left(procs: Any) -> None:
    with procs.activate():
        model = module(lambda: nn.Linear(3, 2))
        loss = model(there(numbers(2, 3))).relu().sum()
    loss.backward()
    local = module(lambda: nn.Linear(3, 2))
    local(numbers(2, 3)).relu().sum().backward()
    torch.testing.assert_close(monarch.inspect(model.weight.grad, gpus=1), local.weight.grad)


def test_hooks(procs: Any) -> None:
    def program() -> list[Any]:
        calls: list[str] = []
        model = module(lambda: nn.Linear(3, 2))
        model.register_forward_hook(lambda m, args, out: out * 2)
        model.register_full_backward_hook(lambda m, given, got: calls.append("module"))
        model.weight.register_hook(lambda grad: grad * 3)
        model.bias.register_post_accumulate_grad_hook(lambda p: calls.append("bias"))
        x = there(numbers(2, 3)).requires_grad_()
        y = model(x)
        y.retain_grad()
        y.sum().backward()
        assert sorted(calls) == ["bias", "module"]
        return [model.weight.grad, x.grad, y.grad]

    both(procs, program)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(procs: Any, reentrant: bool) -> None:
    def program() -> list[Any]:
        model = module(lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))
        x = there(numbers(2, 3)).requires_grad_()
        checkpoint(model, x, use_reentrant=reentrant).square().sum().backward()
        return [x.grad, *(parameter.grad for parameter in model.parameters())]

    both(procs, program)


def test_a_function_of_the_program(procs: Any) -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return grad * 3 * x * x

    def program() -> list[Any]:
        x = there(numbers(3)).requires_grad_()
        Cube.apply(x).sum().backward()
        return [x.grad]

    both(procs, program)


def test_views_and_changes_in_place_under_grad(procs: Any) -> None:
    def program() -> list[Any]:
        x = there(numbers(4, 3)).requires_grad_()
        y = x * 2
        y[1:3].mul_(3)
        y.t()[0].add_(1)
        y[:, 1] = 5.0
        y.sum().backward()
        leaf = there(numbers(2)).requires_grad_()
        with pytest.raises(RuntimeError, match="leaf Variable"):
            leaf.add_(1)
        return [y.detach(), x.grad]

    both(procs, program)


def test_gradients_through_indexing_and_gathering(procs: Any) -> None:
    def program() -> list[Any]:
        x = there(numbers(4, 3)).requires_grad_()
        rows = torch.tensor([0, 2, 2])
        out = x[rows].sum(0) * x.gather(1, torch.tensor([[0], [1], [2], [0]])).sum()
        out = out + torch.cat([x[:2], x[2:]]).index_select(1, torch.tensor([0, 1, 1])).sum(0)
        out.square().sum().backward()
        return [out.detach(), x.grad]

    both(procs, program, 1e-5)


def test_functional_transforms_of_parameters(procs: Any) -> None:
    def program() -> list[Any]:
        model = module(lambda: nn.Linear(3, 2))
        weights = {name: p.detach() * 2 for name, p in model.named_parameters()}
        out = torch.func.functional_call(model, weights, (there(numbers(2, 3)),))
        vector = nn.utils.parameters_to_vector(model.parameters())
        nn.utils.vector_to_parameters(vector * 3, model.parameters())
        return [out, model.weight.detach()]

    both(procs, program)


def test_freezing_and_no_grad(procs: Any) -> None:
    def program() -> list[Any]:
        model = module(lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)))
        model[0].requires_grad_(False)
        model(there(numbers(2, 3))).sum().backward()
        assert model[0].weight.grad is None
        with torch.no_grad():
            assert not model(there(numbers(2, 3))).requires_grad
        with torch.inference_mode():
            out = model(there(numbers(2, 3))) * 1
        return [model[1].weight.grad, out]

    both(procs, program)


@pytest.mark.parametrize(
    ("shape", "masked", "value"),
    [((2, 3, 5), 2, (5,)), ((2, 3, 5), 2, (1, 5)), ((2, 3), 2, ()), ((4, 2, 3), 1, (2, 1)), ((4, 2, 3), 1, (1, 1, 3))],
    ids=str,
)
def test_a_value_for_all_that_a_mask_chooses(shape: Any, masked: int, value: Any) -> None:
    def computed() -> tuple[Any, ...]:
        torch.manual_seed(0)
        x, given = torch.randn(shape, requires_grad=True), torch.randn(value, requires_grad=True)
        y = x * 1
        y[torch.randn(shape[:masked]) > 0] = given
        (y * y).sum().backward()
        return y.detach(), x.grad, given.grad

    wanted = computed()
    with loopback(gpus=2) as mesh:
        found = computed()
        with no_modes():
            for one, plain in zip(found, wanted, strict=True):
                torch.testing.assert_close(mesh.client.local(one), plain)
